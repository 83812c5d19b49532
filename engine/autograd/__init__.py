"""Compiled autograd: captures a backward as an FX graph in eager order and compiles it."""
