"""The steps of ``emit_node``, each in a module of its own, below all variable classes."""
