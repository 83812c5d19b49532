"""Calls of resume functions."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any


class ResumeCall:
    """Constant that calls a resume function's dispatcher, which the cache entry holds.

    The reference is weak. A dispatcher references the globals of its code, and the garbage collector does not traverse
    code objects: a dispatcher among the constants would keep a namespace created for ``exec`` alive forever.
    """

    __slots__ = ("_dispatcher",)

    def __init__(self, dispatcher: Callable[..., Any]) -> None:
        self._dispatcher = weakref.ref(dispatcher)

    def __call__(self, *args: Any) -> Any:
        """Call the dispatcher, which is alive: the function that runs this code references it."""
        return self.dispatcher(*args)

    @property
    def dispatcher(self) -> Callable[..., Any]:
        """The dispatcher of the resume function; alive while the code that calls it runs."""
        dispatcher = self._dispatcher()
        assert dispatcher is not None
        return dispatcher


class TailCall:
    """Call of the next resume function, returned to the root's code, which runs it.

    Python frames therefore do not nest when a loop breaks the graph in each iteration.
    """

    __slots__ = ("arguments", "function")

    def __init__(self, function: Callable[..., Any], *arguments: Any) -> None:
        self.function = getattr(function, "dispatcher", function)  # strong: the caller that references it returns
        self.arguments = arguments

    def take_arguments(self) -> tuple[Any, ...]:
        """Return the arguments and release them.

        Afterwards only the call references them, even if an exception keeps the frame of the caller alive.
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


def load_special_method(manager: Any, name: str) -> Any:
    """Return a special method of a context manager, bound to it, as a ``with`` statement does."""
    for cls in type(manager).__mro__:
        method = vars(cls).get(name, _MISSING)
        if method is not _MISSING:
            return method.__get__(manager, type(manager)) if hasattr(type(method), "__get__") else method
    with manager:  # raises Python's own TypeError
        raise AssertionError("unreachable")


_MISSING = object()
