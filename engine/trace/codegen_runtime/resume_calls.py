"""Calls of resume functions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


class TailCall:
    """Call of the next resume function, returned to the root's code, which runs it.

    Therefore loops do not nest Python frames.
    """

    __slots__ = ("arguments", "function")

    def __init__(self, function: Callable[..., Any], *arguments: Any) -> None:
        self.function = function
        self.arguments = arguments

    def take_arguments(self) -> tuple[Any, ...]:
        """Return the arguments and release them.

        Afterwards only the call holds them: an exception may reference the frame of the caller.
        """
        arguments, self.arguments = self.arguments, ()
        return arguments


def run_tail_calls(result: Any) -> Any:
    """Run resume functions until one returns a value."""
    while type(result) is TailCall:
        result = result.function(*result.take_arguments())
    return result


def call_exit(leave: Callable[..., Any], error: BaseException) -> Any:
    """Call ``__exit__`` as a ``with`` statement does for an exception."""
    return leave(type(error), error, error.__traceback__)
