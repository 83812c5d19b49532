"""A wide bench of models and kernels: ``python -m tests.bench.wide --help``."""
