"""Exceptions of the AOT stage."""

from __future__ import annotations


class CannotFunctionalize(Exception):
    """The graph cannot be made functional without changing what a person could notice; the text says why."""
