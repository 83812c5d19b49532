"""Marks that user code puts on functions and tensors, and that tracer, dispatcher and people must agree on."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

F = TypeVar("F", bound=Callable[..., Any])

DISABLED = "__engine_disable__"
"""Attribute of a function that is never traced nor compiled."""
IN_GRAPH = "__engine_in_graph__"
"""Attribute of a function that becomes one graph node without being looked into."""
DYNAMIC = "_engine_dynamic"
"""Attribute of a tensor: dict of dimension -> (min or None, max or None)."""
STATIC = "_engine_static"
"""Attribute of a tensor: set of dimensions that never become symbols."""


def disable(fn: F) -> F:
    """Mark a function as never to be traced: calls to it break the graph and run as plain Python."""
    setattr(fn, DISABLED, True)
    return fn


def allow_in_graph(fn: F) -> F:
    """Mark a function as one operator: it becomes a graph node and is not looked into. It must be pure and take and return tensors."""
    setattr(fn, IN_GRAPH, True)
    return fn


def graph_break(msg: str = "") -> None:
    """End the current graph here; ``msg`` becomes the recorded reason. Does nothing in plain Python."""


def is_disabled(fn: object) -> bool:
    """Whether ``disable`` (ours, or torch.compiler's) marked this function."""
    found = getattr(fn, "__dict__", {})
    return DISABLED in found or bool(found.get("_torchdynamo_disable", False))


def is_in_graph(fn: object) -> bool:
    """Whether ``allow_in_graph`` marked this function."""
    return IN_GRAPH in getattr(fn, "__dict__", {})
