"""The on-disk cache: keys, serialization, store."""
