"""Kernel templates for matmul and attention, which loops over elements compute slowly."""
