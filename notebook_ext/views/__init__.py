"""Views: pure functions from records to JSON values, without widgets and torch."""
