"""State of tracing one frame: one owner for each concern, with the tracer's lifetime."""
