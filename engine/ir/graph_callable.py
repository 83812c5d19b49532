"""Named Python callables that are targets of graph nodes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch.fx

Run = Callable[..., Any]
"""Runs a compiled graph, a wrapper around one, or what takes its place."""


class GraphCallable:
    """A callable with the name that the graph shows.

    ``fx`` prints targets by name, and not every callable has a name that leads back to it.
    """

    def __init__(
        self,
        name: str,
        run: Run,
        *,
        changes_state: bool = False,
        is_python: bool = False,
        counts_writes: bool = False,
        effect: str = "changes torch's state",
        arguments: Mapping[str, Any] | None = None,
    ) -> None:
        self.__name__ = name
        self.__qualname__ = name
        self.fn = run
        self.changes_state = changes_state
        """True if it reads or changes torch's own state beyond its arguments.

        Such a callable runs only in the graph as traced.
        """
        self.effect_description = effect
        """Description of its side effect, for display."""
        self.runs_user_python = is_python
        """True if it runs user Python code, which may read state that the user's code changes."""
        self.counts_writes = counts_writes
        """True if the versions of its arguments show all that it mutates."""
        self.context_args = dict(arguments or {})
        """Constructor arguments of the context manager that it enters."""

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.fn(*args, **kwargs)

    def __repr__(self) -> str:
        return f"<{self.__name__} in a graph>"


NO_CALLABLE = GraphCallable("", lambda: None)
"""Stands for the target of a node that calls no ``GraphCallable``."""


def graph_callable_of(node: torch.fx.Node) -> GraphCallable:
    """Return the callable that a node calls, ``NO_CALLABLE`` if it is none of this engine."""
    return node.target if isinstance(node.target, GraphCallable) else NO_CALLABLE
