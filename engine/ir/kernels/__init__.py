"""Kernels and programs, as lowering hands them to the runtime."""
