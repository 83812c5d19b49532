"""What any stage may do with fx graphs: tell them, and keep device-dependent operators whole."""
