"""Comparison of the ranks of one distributed program."""
