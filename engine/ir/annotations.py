"""Marks that user code sets on functions and tensors, read by tracer and dispatcher."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from engine.torch_private.global_state import loaded_dynamo_module

F = TypeVar("F", bound=Callable[..., Any])


DISABLE_ATTR = "__engine_disable__"
"""Attribute of a function that is never traced or compiled."""


ALLOW_IN_GRAPH_ATTR = "__engine_in_graph__"
"""Attribute of a function that becomes one graph node and is not traced."""


DYNAMIC_DIMS_ATTR = "_engine_dynamic"
"""Attribute of a tensor: dict of dimension -> (min or None, max or None)."""


STATIC_DIMS_ATTR = "_engine_static"
"""Attribute of a tensor: set of dimensions that never become symbols."""


def disable(fn: F) -> F:
    """Mark a function as never traced: calls break the graph and run as plain Python."""
    setattr(fn, DISABLE_ATTR, True)
    return fn


def allow_in_graph(fn: F) -> F:
    """Mark a function as one operator: it becomes a graph node and is not traced.

    The function must be pure, and must take and return tensors.
    """
    setattr(fn, ALLOW_IN_GRAPH_ATTR, True)
    return fn


def graph_break(msg: str = "") -> None:
    """Force a graph break here; ``msg`` becomes its recorded reason.

    No effect in plain Python.
    """


@dataclass(frozen=True)
class TracerSnapshot:
    """Snapshot of the tracer's state for ``while_tracing``.

    ``stack`` is the user's, outermost first. The other fields are text for display.
    """

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
    """Call ``look`` with a ``TracerSnapshot`` when this line is traced; without it, print it.

    No effect in plain Python or in compiled code. ``look`` is a module-level function or a builtin such as
    ``print``. It is called again when tracing restarts.
    """


def is_disabled(fn: object) -> bool:
    """Return True if the engine's or torch.compiler's ``disable`` marked this function."""
    attributes = getattr(fn, "__dict__", {})
    return DISABLE_ATTR in attributes or bool(attributes.get("_torchdynamo_disable", False))


def skipped_frame(fn: object) -> Any:
    """Return the function that ``torch.compiler.disable(recursive=False)`` wrapped, or None.

    Functions that it calls are compiled.
    """
    attributes = getattr(fn, "__dict__", {})
    is_skipped = attributes.get("_torchdynamo_disable_recursive") is False
    return attributes.get("_torchdynamo_orig_callable") if is_skipped else None


def is_allowed_in_graph(fn: object) -> bool:
    """Return True if the engine's or torch.compiler's ``allow_in_graph`` marked this function."""
    return ALLOW_IN_GRAPH_ATTR in getattr(fn, "__dict__", {}) or _is_in_dynamo_table("_allowed_callable_ids", fn)


def is_nonstrict_traced(fn: object) -> bool:
    """Return True if ``torch._dynamo.nonstrict_trace`` wrapped this function.

    A call of it becomes one node, whatever its arguments are.
    """
    return _is_in_dynamo_table("_nonstrict_trace_callable_ids", fn)


def is_disallowed_in_graph(fn: object) -> bool:
    """Return True if ``torch._dynamo.disallow_in_graph`` marked this function of the user's."""
    is_own = str(getattr(fn, "__module__", "")).startswith("torch._dynamo.")
    return not is_own and _is_in_dynamo_table("_disallowed_callable_ids", fn)


def substitute_of(fn: object) -> Callable[..., Any] | None:
    """Return the user's ``substitute_in_graph`` of a function, or None.

    Torch's own substitutes are for the functions that Dynamo itself does not know.
    """
    if not _is_in_dynamo_table("_polyfilled_function_ids", fn):
        return None
    handlers = loaded_dynamo_module("variables.functions").PolyfilledFunctionVariable._get_polyfill_handlers()
    polyfill: Callable[..., Any] | None = getattr(handlers.get(fn), "__torch_dynamo_polyfill__", None)
    return None if polyfill is None or str(polyfill.__module__).startswith("torch.") else polyfill


def _is_in_dynamo_table(table: str, fn: object) -> bool:
    """Return True if a table of ``torch._dynamo`` (if it is loaded) lists this function."""
    rules = loaded_dynamo_module("trace_rules")
    return rules is not None and id(fn) in getattr(rules, table, ())
