"""Indexing by integers that only the running graph knows: one step for each part of the key, as eager does it."""

from __future__ import annotations

import operator
from typing import TYPE_CHECKING

import torch

from engine.ir.in_graph import InGraph
from engine.ir.unbacked import is_unbacked
from engine.options import config
from engine.trace.graph_builder import emit
from engine.trace.values.base import Const, Value, force
from engine.trace.values.sequences import SliceValue, TupleValue
from engine.trace.values.symbolic import SymValue
from engine.trace.values.tensor import TensorValue, is_subclass

if TYPE_CHECKING:
    from engine.trace.state import Tracer

_INTEGERS = frozenset((torch.int8, torch.int16, torch.int32, torch.int64))


def _select(of: torch.Tensor, dim: int, index: int | torch.SymInt) -> torch.Tensor:
    return of[(slice(None),) * dim + (index,)] if isinstance(index, int) else of.select(dim, index)


_SELECT = InGraph("select", _select)
"""Called with a number it indexes, so that what is out of range is told as eager tells it."""


def selected(tx: Tracer, of: TensorValue, key: Value) -> Value | None:
    """``of[key]`` as selects and slices, where a part of the key is an integer that only the graph knows; None for any other key."""
    parts = [force(tx, k) for k in key.items] if isinstance(key, TupleValue) else [key]
    if not config.capture_scalar_outputs or is_subclass(of.fake) or not any(_is_unknown(tx, p) for p in parts):
        return None
    if not all(_is_step(tx, p) for p in parts):
        return None
    takes = sum(isinstance(p, (SliceValue, SymValue, TensorValue)) or _is_integer(p) for p in parts)
    found: Value = of
    dim = 0
    for part in parts:
        if isinstance(part, Const) and part.value is Ellipsis:
            dim += of.fake.dim() - takes
        elif isinstance(part, Const) and part.value is None:
            found = emit(tx, "call_method", "unsqueeze", [found, Const(dim)])
            dim += 1
        elif isinstance(part, SliceValue):
            whole = [SliceValue([Const(None)] * 3) for _ in range(dim)]
            inside = SliceValue([_number(tx, p) for p in part.parts])
            found = emit(tx, "call_function", operator.getitem, [found, TupleValue([*whole, inside])])
            dim += 1
        else:
            found = emit(tx, "call_function", _SELECT, [found, Const(dim), _number(tx, part)])
    return found


def _is_unknown(tx: Tracer, part: Value) -> bool:
    if isinstance(part, SliceValue):
        return any(_is_unknown(tx, force(tx, p)) for p in part.parts)
    return _is_position(part) or (isinstance(part, SymValue) and part.type() is int and is_unbacked(part.sym))


def _is_position(part: Value) -> bool:
    """A tensor of one integer is the same as that integer."""
    return isinstance(part, TensorValue) and part.fake.dim() == 0 and part.fake.dtype in _INTEGERS


def _is_step(tx: Tracer, part: Value) -> bool:
    if isinstance(part, SliceValue):
        return all(_is_bound(force(tx, p)) for p in part.parts)
    if isinstance(part, Const):
        return part.value is None or part.value is Ellipsis or _is_integer(part)
    return _is_bound(part)


def _is_bound(part: Value) -> bool:
    if isinstance(part, Const):
        return part.value is None or _is_integer(part)
    return _is_position(part) or (isinstance(part, SymValue) and part.type() is int)


def _is_integer(part: Value) -> bool:
    return isinstance(part, Const) and type(part.value) is int


def _number(tx: Tracer, part: Value) -> Value:
    part = force(tx, part)
    return part.call_method(tx, "item", [], {}) if isinstance(part, TensorValue) else part
