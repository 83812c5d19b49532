"""Passes that users register: run them, check what they did, undo those that fail."""
