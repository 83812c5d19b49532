"""Switches that torch keeps as attributes of its modules, ``torch.backends.cudnn.benchmark`` for one: guarded when read, set by the graph and while tracing."""

from __future__ import annotations

import contextlib
import functools
from typing import TYPE_CHECKING, Any

import torch.backends

from engine.ir.in_graph import InGraph
from engine.ir.origin import Attr, Fixed
from engine.ir.value_guard import Equals
from engine.trace.signals import Unsupported
from engine.trace.values.base import Const, Value

if TYPE_CHECKING:
    from engine.trace.state import Tracer


def read(tx: Tracer, holder: Any, name: str, found: Any) -> Value:
    """A switch as it stands: guarded, unless the traced code set it."""
    if (holder, name) not in tx.flags_set:
        origin = Attr(Fixed(holder, _name(holder)), name)
        tx.guard(Equals(origin, found, cause=tx.cause("a switch of torch's decided what was traced")))
    return Const(found)


def is_flag(holder: Any, name: str) -> bool:
    """Whether setting the attribute is setting one of torch's switches."""
    return isinstance(vars(type(holder)).get(name), torch.backends.ContextProp)


def _name(holder: Any) -> str:
    return getattr(holder, "__name__", "torch.backends.cuda.matmul")


class _Before:
    """A switch as it was, put back when tracing ends."""

    def __init__(self, holder: Any, name: str) -> None:
        self._put = functools.partial(setattr, holder, name, getattr(holder, name))

    def __exit__(self, *_: object) -> None:
        self._put()


def write(tx: Tracer, holder: Any, name: str, value: Value) -> None:
    """``holder.name = value``.

    Raises:
        Unsupported: the value is not known while tracing.
    """
    from engine.trace.values.nested import NestedBuilder

    if isinstance(tx.graph, NestedBuilder):
        raise Unsupported("side-effect", f"{_name(holder)}.{name} is set in the body of a higher-order operation")
    real = tx.constants([value])[0]
    read(tx, holder, name, getattr(holder, name))
    tx.undo_at_end.append(_Before(holder, name))
    tx.fold(setattr, holder, name, real)
    tx.flags_set.add((holder, name))
    target = InGraph(f"set_{name}", functools.partial(setattr, holder, name, real), changes_state=True)
    node = tx.graph.add("call_function", target, (), {}, tx.node_origin())
    node.meta["example_value"] = None
    tx.note_handlers()
    tx.changes += 1


def note_all(tx: Tracer, holder: Any) -> None:
    """Called before a context sets switches of a module, or puts them back: what they were is guarded, what they become is not."""
    for name, prop in vars(type(holder)).items():
        if isinstance(prop, torch.backends.ContextProp) and (holder, name) not in tx.flags_set:
            with contextlib.suppress(RuntimeError, AttributeError):  # a build without that library
                read(tx, holder, name, getattr(holder, name))
            tx.flags_set.add((holder, name))
