"""A wide bench of models and kernels that nobody tuned for: ``python -m tests.bench.wide --help``."""
