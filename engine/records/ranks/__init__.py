"""Ranks of one program: groups of equals, and the collectives of their graphs."""
