"""Exceptions of the AOT stage."""

from __future__ import annotations


class CannotFunctionalize(Exception):
    """The graph cannot be functionalized without a visible change; the message has the reason."""
