"""Variables of containers and iterators."""
