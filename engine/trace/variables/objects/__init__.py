"""Variables of user-defined objects and classes."""
