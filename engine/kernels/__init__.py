"""Kernels: text out of loops, and what each target's compiler makes of it."""
