"""Normal form of recorded graphs: one form for all spellings of one computation."""
