"""Backends: what compiles a traced graph, chosen by name, with eager as the fallback."""
