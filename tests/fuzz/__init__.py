"""Random programs compared with eager: ``python -m tests.fuzz programs --seed 1``."""
