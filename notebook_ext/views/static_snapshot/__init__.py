"""Static snapshot of a session: the copy that needs no kernel."""
