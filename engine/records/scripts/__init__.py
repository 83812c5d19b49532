"""Scripts that show again what a session recorded."""
