"""Repairs of Triton's interpreter."""
