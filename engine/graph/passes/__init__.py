"""Passes over FX graphs: one file and function each; graphs are valid before and after."""
