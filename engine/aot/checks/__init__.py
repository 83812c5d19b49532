"""Eligibility checks: why a graph cannot be functionalized, one rule or family per file."""
