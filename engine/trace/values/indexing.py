"""Indexing by integers that only the running graph knows: one step for each part of the key, as eager does it."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeGuard

import torch
import torch.fx

from engine.ir.in_graph import InGraph
from engine.ir.unbacked import is_unbacked
from engine.options import config
from engine.trace.graph_builder import MAPPED, emit
from engine.trace.values.base import Const, Value, force
from engine.trace.values.sequences import ListValue, RangeValue, SliceValue, TupleValue
from engine.trace.values.symbolic import SymValue
from engine.trace.values.tensor import TensorValue, is_subclass

if TYPE_CHECKING:
    from engine.trace.state import Tracer

_INTEGERS = frozenset((torch.int8, torch.int16, torch.int32, torch.int64))
_POSITIONS = frozenset((torch.int32, torch.int64, torch.bool))
_ROWS = 2
"""From how many dimensions on an array is a sequence of sequences, which torch may take for a tuple."""


def _select(of: torch.Tensor, dim: int, index: int | torch.SymInt) -> torch.Tensor:
    return of[(slice(None),) * dim + (index,)] if isinstance(index, int) else of.select(dim, index)


_SELECT = InGraph("select", _select)
"""Called with a number it indexes, so that what is out of range is told as eager tells it."""


def selected(tx: Tracer, of: TensorValue, key: Value) -> Value | None:
    """``of[key]`` as selects and slices, where a part of the key is an integer that only the graph knows, or that varies; None for any other key."""
    parts = [force(tx, k) for k in key.items] if isinstance(key, TupleValue) else [force(tx, key)]
    if is_subclass(of.fake) or not any(_is_unknown(tx, p) or _is_whole(p) for p in parts):
        return None
    if not config.capture_scalar_outputs and any(_is_unknown(tx, p) for p in parts):
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


def with_positions(tx: Tracer, key: Value) -> Value:
    """The key with what torch makes of numpy's arrays and of ranges: tensors and lists; an array of rows alone may be a tuple, and is left."""
    from engine.trace.values.numpy_arrays import ArrayValue

    def positions(part: Value, *, rows: bool) -> Value:
        part = force(tx, part)
        if isinstance(part, RangeValue):
            return ListValue([Const(n) for n in part.value])
        if not isinstance(part, ArrayValue) or not (rows or part.tensor.fake.dim() < _ROWS):
            return part
        fake = part.tensor.fake
        return part.tensor if fake.dtype in _POSITIONS and not (part.is_scalar and fake.dtype is torch.bool) else part

    key = force(tx, key)
    if not isinstance(key, TupleValue):
        return positions(key, rows=False)
    parts = [positions(part, rows=True) for part in key.items]
    return TupleValue(parts) if any(isinstance(force(tx, k), (ArrayValue, RangeValue)) for k in key.items) else key


def in_rows(tx: Tracer, key: Value) -> bool:
    """Whether a part of the key is an integer of each row that ``vmap`` runs: no number can be made of it."""
    parts = [force(tx, k) for k in key.items] if isinstance(key, TupleValue) else [key]
    return any(_is_position(p) and _is_mapped(p.graph_arg(tx)[0]) for p in parts)


def _is_mapped(node: torch.fx.Node) -> bool:
    """Whether a node's value differs between the rows of ``vmap``."""
    seen: set[torch.fx.Node] = set()
    todo = [node]
    while todo:
        one = todo.pop()
        if one in seen:
            continue
        seen.add(one)
        if one.meta.get(MAPPED):
            return True
        todo += one.all_input_nodes
    return False


def row_at(of: torch.Tensor, key: Any) -> Any:
    """``of[key]`` in a row of ``vmap``, over fakes."""
    return _over_rows(operator.getitem, of, key)


def put_in_row(of: torch.Tensor, key: Any, value: Any) -> None:
    """``of[key] = value`` in a row of ``vmap``, over fakes."""
    _over_rows(operator.setitem, of, key, value)


def _over_rows(act: Callable[..., Any], of: torch.Tensor, key: Any, *value: Any) -> Any:
    parts = list(key) if isinstance(key, tuple) else [key]
    places = [n for n, p in enumerate(parts) if isinstance(p, torch.Tensor)]

    def row(one: torch.Tensor, *positions: torch.Tensor) -> Any:
        filled = list(parts)
        for place, position in zip(places, positions, strict=True):
            filled[place] = position
        found = act(one, tuple(filled), *value)
        return one if found is None else found

    return torch.vmap(row)(of.unsqueeze(0), *(parts[n].unsqueeze(0) for n in places)).squeeze(0)


def _is_unknown(tx: Tracer, part: Value) -> bool:
    if isinstance(part, SliceValue):
        return any(_is_unknown(tx, force(tx, p)) for p in part.parts)
    return _is_position(part) or (_is_whole(part) and is_unbacked(part.sym))


def _is_whole(part: Value) -> TypeGuard[SymValue]:
    """Whether it is a symbol for an integer."""
    return isinstance(part, SymValue) and part.type() is int


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
    return _is_position(part) or _is_whole(part)


def _is_integer(part: Value) -> bool:
    return isinstance(part, Const) and type(part.value) is int


def _number(tx: Tracer, part: Value) -> Value:
    part = force(tx, part)
    return part.call_method(tx, "item", [], {}) if isinstance(part, TensorValue) else part
