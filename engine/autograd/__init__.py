"""Captures the backward that autograd is about to run, puts it in eager's order, and runs it compiled."""
