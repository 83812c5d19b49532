"""Values: what stands for Python objects while tracing. One small class per kind, one file per family."""
