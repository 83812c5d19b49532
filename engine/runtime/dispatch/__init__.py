"""Dispatch a call to the cache entry whose guards pass."""
