"""Commands of ``python -m notebook_ext`` that need no notebook."""
