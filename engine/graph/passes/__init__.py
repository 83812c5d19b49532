"""Rewrites of fx graphs: one pass, one file, one function of that name; legal before, legal after."""
