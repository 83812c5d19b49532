"""Code that runs instead of a traced frame: its prologue, and the functions that it calls."""
