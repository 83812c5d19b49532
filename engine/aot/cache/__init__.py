"""Compiled results on disk: what they are found by, how they are written as text, and when they may be kept."""
