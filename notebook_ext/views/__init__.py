"""Records become plain JSON-able values here: pure functions, no widgets, no torch."""
