"""Fake tensors of the tracer."""
