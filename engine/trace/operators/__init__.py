"""Python's operators on variables."""
