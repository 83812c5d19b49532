"""Edit recorded graphs as text, and try the edits."""
