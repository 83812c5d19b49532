"""Kinds of ATen calls in a lowered program, and their catalog."""
