"""Flags of ``torch.backends``, such as ``cudnn.benchmark``: reads are guarded.

Writes are graph nodes and also take effect while tracing.
"""

from __future__ import annotations

import contextlib
import functools
from typing import Any

import torch.backends

from engine.ir.guards.python_values import EqualsMatch
from engine.ir.sources.attributes import AttrSource
from engine.ir.sources.roots import ConstantSource
from engine.trace.annotations import Tracer
from engine.trace.emit.effects import switch_state
from engine.trace.variables.base import ConstantVariable, Variable


class _BackendFlagWrites(set[tuple[Any, str]]):
    """torch backend flags that the traced code set: pairs of module and name."""


def read_flag(tx: Tracer, holder: Any, name: str, flag_value: Any) -> Variable:
    """Return the current value of a flag, guarded unless the traced code wrote it."""
    if (holder, name) not in tx.state_of(_BackendFlagWrites):
        of = ConstantSource(holder, getattr(holder, "__name__", "torch.backends.cuda.matmul"))
        source = AttrSource(of, name)
        tx.guard(EqualsMatch, source, flag_value, why="a backend flag of torch decided what was traced")
    return ConstantVariable(flag_value)


def is_flag(holder: Any, name: str) -> bool:
    """Return True if the attribute is a ``torch.backends`` flag."""
    return isinstance(vars(type(holder)).get(name), torch.backends.ContextProp)


def write_flag(tx: Tracer, holder: Any, name: str, value: Variable) -> None:
    """Trace ``holder.name = value``.

    Raises:
        Unsupported: the value is not constant, or a higher-order operator's body sets it.
    """
    put = functools.partial(setattr, holder, name, *tx.as_python_constants([value]))
    read_flag(tx, holder, name, getattr(holder, name))
    switch_state(tx, f"set_{name}", put, functools.partial(setattr, holder, name, getattr(holder, name)))
    tx.state_of(_BackendFlagWrites).add((holder, name))


def guard_all_flags(tx: Tracer, holder: Any) -> None:
    """Guard the flags of a module before a context sets or restores them.

    Values set afterwards need no guard.
    """
    written = tx.state_of(_BackendFlagWrites)
    for name in vars(type(holder)):
        if is_flag(holder, name) and (holder, name) not in written:
            with contextlib.suppress(RuntimeError, AttributeError):  # torch may be built without that library
                read_flag(tx, holder, name, getattr(holder, name))
            written.add((holder, name))
