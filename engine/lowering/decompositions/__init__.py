"""Decompositions that torch does not provide."""
