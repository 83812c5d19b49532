"""Variables of exceptions."""
