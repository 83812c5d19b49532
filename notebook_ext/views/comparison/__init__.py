"""Views that compare two sessions."""
