"""The timeline of a session in formats of other tools."""
