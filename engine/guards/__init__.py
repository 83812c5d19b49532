"""Guard checks of cache entries: order, generated check, explanation, failure messages."""
