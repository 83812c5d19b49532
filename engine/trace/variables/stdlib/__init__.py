"""Variables and rules for the standard library."""
