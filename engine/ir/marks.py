"""Marks that user code puts on functions and tensors, and that tracer, dispatcher and people must agree on."""

from __future__ import annotations

import sys
import types
import weakref
from collections.abc import Callable, Mapping, MutableMapping
from dataclasses import dataclass
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


@dataclass(frozen=True)
class TraceView:
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


def while_tracing(look: Callable[[TraceView], Any] | None = None) -> None:
    """Look at the tracer's state: ``look`` is called with a ``TraceView`` when this line is traced, and the view is printed without one.

    Plain Python does nothing here, nor does compiled code. ``look`` is a function of a module, or a builtin such as ``print``; it is called
    again when tracing starts over.
    """


def is_disabled(fn: object) -> bool:
    """Whether ``disable`` (ours, or torch.compiler's) marked this function."""
    found = getattr(fn, "__dict__", {})
    return DISABLED in found or bool(found.get("_torchdynamo_disable", False))


def is_in_graph(fn: object) -> bool:
    """Whether ``allow_in_graph`` (ours, or torch.compiler's) marked this function."""
    return IN_GRAPH in getattr(fn, "__dict__", {}) or _is_noted("_allowed_callable_ids", fn)


def is_opaque(fn: object) -> bool:
    """Whether ``torch._dynamo.nonstrict_trace`` made this function: a node that calls it on whatever it is given."""
    return _is_noted("_nonstrict_trace_callable_ids", fn)


def _is_noted(table: str, fn: object) -> bool:
    """Whether ``torch._dynamo``, if it was loaded, notes a function in one of its tables."""
    rules = sys.modules.get("torch._dynamo.trace_rules")
    return rules is not None and id(fn) in getattr(rules, table, ())


ORIGINALS: MutableMapping[types.FunctionType, types.FunctionType] = weakref.WeakKeyDictionary()
"""Dispatcher -> the function it dispatches, for every dispatcher alive."""
ORIGINAL_MODULE = "_engine_original"
"""Attribute of a compiled module: the module it was made from, with which it shares its ``__dict__``."""


_COMPILED_BY_TORCH = "_torchdynamo_orig_callable"
_UNDER_CONTEXT = "wrap_dunder_call_ctx_manager.<locals>.inner"
"""What torch makes of a function that one of its settings decorates, such as ``torch._dynamo.dont_skip_tracing``."""


def is_break_policy(obj: Any) -> bool:
    """Whether it is what ``torch._dynamo.error_on_graph_break`` makes: it means something to us too."""
    cls = type(obj)
    return (cls.__module__, cls.__name__) == ("torch._dynamo.decorators", "ErrorOnGraphBreakDecoratorContextManager")


def behind_torch_compile(obj: Any) -> Any:
    """What ``torch.compile`` made a function or a module from; None for all else, also for what ``torch.compiler.disable`` wrapped."""
    if type(obj) is types.FunctionType:
        found = obj.__dict__
        if obj.__qualname__ == _UNDER_CONTEXT and obj.__closure__ is not None:
            inside = dict(zip(obj.__code__.co_freevars, obj.__closure__, strict=True))
            return None if is_break_policy(inside["self"].cell_contents) else inside["func"].cell_contents
        region = found.get("__marked_compile_region_fn__")
        return None if found.get("_torchdynamo_disable") else region or found.get(_COMPILED_BY_TORCH)
    if type(obj).__module__ == "torch._dynamo.eval_frame":
        return vars(obj).get("_modules", {}).get("_orig_mod")
    return None


def original(obj: Any) -> Any:
    """What a dispatcher or a compiled module, torch.compile's too, was made from, also behind a bound method; anything else as it is."""
    behind = behind_torch_compile(obj)
    if behind is not None:
        return original(behind)
    if type(obj) is types.FunctionType:
        return ORIGINALS.get(obj, obj)
    if type(obj) is types.MethodType:
        function, owner = original(obj.__func__), original(obj.__self__)
        return obj if function is obj.__func__ and owner is obj.__self__ else types.MethodType(function, owner)
    if ORIGINAL_MODULE in type(obj).__dict__:
        return getattr(obj, ORIGINAL_MODULE)
    return obj
