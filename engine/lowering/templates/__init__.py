"""Kernels made from templates where loops over elements would be slow: products of matrices and attention."""
