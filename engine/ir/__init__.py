"""What one stage hands to the next. May hold torch objects; what is told about them lives in ``engine.records``."""
