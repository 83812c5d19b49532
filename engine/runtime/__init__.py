"""Running what was compiled: dispatch and its cache, programs of kernels, workers, verification."""
