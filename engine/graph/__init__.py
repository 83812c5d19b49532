"""fx graphs: their legality, their text, passes over them, and the operators that are kept whole for every target."""
