"""Plain, frozen, JSON-able facts that the stages tell. Nothing here imports torch: a saved session opens without it."""
