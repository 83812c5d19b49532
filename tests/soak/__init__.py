"""Soak test: many compilations and calls in one process, whose memory must stay flat."""
