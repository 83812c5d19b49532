"""Compare compiled results and kernels with eager."""
