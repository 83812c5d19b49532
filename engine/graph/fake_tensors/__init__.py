"""Fake tensors whose layouts are those of eager."""
