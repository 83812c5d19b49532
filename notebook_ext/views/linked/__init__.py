"""Views of the linked panes."""
