"""Variables: what stands for a Python value while tracing, one file per family."""
