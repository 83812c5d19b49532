"""Kernels for the CPU: loop IR printed as LLVM IR with explicit vectors."""
