"""Python callables that are targets of graph nodes under a name of their own."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any


class GraphCallable:
    """A callable with the name that a graph shows: ``fx`` prints nodes by name, and not every callable has one that leads back to it."""

    def __init__(
        self,
        name: str,
        run: Callable[..., Any],
        *,
        changes_state: bool = False,
        is_python: bool = False,
        effect: str = "changes torch's state",
        arguments: Mapping[str, Any] | None = None,
    ) -> None:
        self.__name__ = name
        self.__qualname__ = name
        self.fn = run
        self.changes_state = changes_state
        """Whether it changes, or reads, more than its arguments: torch's own state. Only the graph as traced may run it."""
        self.effect_description = effect
        """What it does beside computing, in words, where only the graph as traced may run it."""
        self.runs_user_python = is_python
        """It runs Python of the user's own, which may read what the user's code changes."""
        self.context_args = dict(arguments or {})
        """What a context is made with that it enters."""

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.fn(*args, **kwargs)

    def __repr__(self) -> str:
        return f"<{self.__name__} in a graph>"
