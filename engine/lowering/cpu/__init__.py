"""Lowering for the CPU: loop nests, and the operators that stay in ATen."""
