"""Treatment of Python's random numbers in one trace."""

from __future__ import annotations

import sympy


class RandomState:
    """Use of Python's random numbers by the traced code."""

    def __init__(self) -> None:
        self.mode = ""
        """Treatment of Python's random numbers, see ``RestartTracing``."""
        self.used_in_python = False
        """True if code needed random results that the graph cannot take as inputs."""
        self.input_count = 0
        """Number of random numbers that the graph takes as inputs."""
        self.drawn_symbols: dict[sympy.Symbol, str] = {}
        """Names of the functions that gave these numbers, by the number's symbol."""

    @property
    def is_used(self) -> bool:
        """Return True if the traced code drew a random number."""
        return self.used_in_python or bool(self.input_count)
