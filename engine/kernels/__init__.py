"""Kernels: print loops as Triton, compile them, link the listings to the source."""
