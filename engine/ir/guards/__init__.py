"""Guard kinds, one frozen class each."""
