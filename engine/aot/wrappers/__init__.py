"""AOT runtime wrappers, one per module; ``order`` lists them."""
