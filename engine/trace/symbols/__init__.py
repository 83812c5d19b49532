"""Symbolic shapes: guards, records, unbacked symbols."""
