"""Memory of a program: which buffers share it, and which inputs are written."""
