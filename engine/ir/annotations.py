"""Marks that user code puts on functions and tensors, and that tracer, dispatcher and people must agree on."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

F = TypeVar("F", bound=Callable[..., Any])


DISABLE_ATTR = "__engine_disable__"
"""Attribute of a function that is never traced nor compiled."""


ALLOW_IN_GRAPH_ATTR = "__engine_in_graph__"
"""Attribute of a function that becomes one graph node without being looked into."""


DYNAMIC_DIMS_ATTR = "_engine_dynamic"
"""Attribute of a tensor: dict of dimension -> (min or None, max or None)."""


STATIC_DIMS_ATTR = "_engine_static"
"""Attribute of a tensor: set of dimensions that never become symbols."""


def disable(fn: F) -> F:
    """Mark a function as never to be traced: calls to it break the graph and run as plain Python."""
    setattr(fn, DISABLE_ATTR, True)
    return fn


def allow_in_graph(fn: F) -> F:
    """Mark a function as one operator: it becomes a graph node and is not looked into. It must be pure and take and return tensors."""
    setattr(fn, ALLOW_IN_GRAPH_ATTR, True)
    return fn


def graph_break(msg: str = "") -> None:
    """End the current graph here; ``msg`` becomes the recorded reason. Does nothing in plain Python."""


@dataclass(frozen=True)
class TracerSnapshot:
    """What the tracer knows where ``while_tracing`` is called. ``stack`` is the user's, outermost first; the rest is text for people."""

    stack: tuple[str, ...]
    locals: Mapping[str, str]
    graph: str
    guards: tuple[str, ...]

    def __str__(self) -> str:
        names = [f"  {name} = {text}" for name, text in self.locals.items()]
        guards = [f"  {guard}" for guard in self.guards]
        return "\n".join(
            ["stack", *(f"  {s}" for s in self.stack), "locals", *names, "guards", *guards, "graph", self.graph]
        )


def while_tracing(look: Callable[[TracerSnapshot], Any] | None = None) -> None:
    """Look at the tracer's state: ``look`` is called with a ``TracerSnapshot`` when this line is traced, and the view is printed without one.

    Plain Python does nothing here, nor does compiled code. ``look`` is a function of a module, or a builtin such as ``print``; it is called
    again when tracing starts over.
    """


def is_disabled(fn: object) -> bool:
    """Whether ``disable`` (ours, or torch.compiler's) marked this function."""
    found = getattr(fn, "__dict__", {})
    return DISABLE_ATTR in found or bool(found.get("_torchdynamo_disable", False))


def is_allowed_in_graph(fn: object) -> bool:
    """Whether ``allow_in_graph`` (ours, or torch.compiler's) marked this function."""
    return ALLOW_IN_GRAPH_ATTR in getattr(fn, "__dict__", {}) or _is_in_dynamo_table("_allowed_callable_ids", fn)


def is_nonstrict_traced(fn: object) -> bool:
    """Whether ``torch._dynamo.nonstrict_trace`` made this function: a node that calls it on whatever it is given."""
    return _is_in_dynamo_table("_nonstrict_trace_callable_ids", fn)


def _is_in_dynamo_table(table: str, fn: object) -> bool:
    """Whether ``torch._dynamo``, if it was loaded, notes a function in one of its tables."""
    rules = sys.modules.get("torch._dynamo.trace_rules")
    return rules is not None and id(fn) in getattr(rules, table, ())
