"""Calls of resume functions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


class TailCall:
    """What a resume function returns instead of calling the next one: the root's code calls it, so that loops do not nest frames."""

    __slots__ = ("arguments", "function")

    def __init__(self, function: Callable[..., Any], *arguments: Any) -> None:
        self.function = function
        self.arguments = arguments

    def take_arguments(self) -> tuple[Any, ...]:
        """The arguments, which nothing but the call holds then: an error that they lead to may know the frame of the caller."""
        arguments, self.arguments = self.arguments, ()
        return arguments


def run_tail_calls(result: Any) -> Any:
    """Go on with resume functions until one returns a value."""
    while type(result) is TailCall:
        result = result.function(*result.take_arguments())
    return result


def call_exit(leave: Callable[..., Any], error: BaseException) -> Any:
    """What a ``with`` statement calls when an exception passes it."""
    return leave(type(error), error, error.__traceback__)
