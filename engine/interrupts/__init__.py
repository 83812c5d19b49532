"""Ctrl-C: when it may be delivered, and tables that lose none."""
