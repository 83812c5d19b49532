"""Read Python values without running user code."""
