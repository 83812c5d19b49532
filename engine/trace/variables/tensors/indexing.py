"""Tensor indexing by integers known only at run time, by numpy arrays, and under vmap.

An index with run-time integers becomes one select or slice per part of the key, as in eager mode.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeGuard

import torch
import torch.fx

from engine.ir.graph_callable import GraphCallable
from engine.ir.introspection.unbacked_symbols import has_unbacked_symbols
from engine.options import config
from engine.trace.emit_node import emit_node
from engine.trace.graph_builder import VMAP_META
from engine.trace.variables.base import ConstantVariable, Variable, realize
from engine.trace.variables.containers.sequences import ListVariable, RangeVariable, SliceVariable, TupleVariable
from engine.trace.variables.tensors.sym_node import SymNodeVariable
from engine.trace.variables.tensors.tensor import TensorVariable, is_wrapper_subclass

if TYPE_CHECKING:
    from engine.trace.tracer import Tracer

_INT_DTYPES = frozenset((torch.int8, torch.int16, torch.int32, torch.int64))
_INDEX_DTYPES = frozenset((torch.int32, torch.int64, torch.bool))
_MIN_NESTED_DIM = 2
"""Number of dims that make an array a nested sequence, which torch may read as a tuple."""


def _select(of: torch.Tensor, dim: int, index: int | torch.SymInt) -> torch.Tensor:
    return of[(slice(None),) * dim + (index,)] if isinstance(index, int) else of.select(dim, index)


_SELECT = GraphCallable("select", _select)
"""A select in the graph; an int index uses ``[]``, so index errors match eager mode."""


def index_by_select(tx: Tracer, of: TensorVariable, key: Variable) -> Variable | None:
    """Emit ``of[key]`` as selects and slices if the key has a data-dependent or symbolic part.

    Return None for any other key.
    """
    parts = [realize(tx, k) for k in key.items] if isinstance(key, TupleVariable) else [realize(tx, key)]
    if is_wrapper_subclass(of.fake) or not any(_is_data_dependent(tx, p) or _is_symint(p) for p in parts):
        return None
    if not config.capture_scalar_outputs and any(_is_data_dependent(tx, p) for p in parts):
        return None
    if not all(_is_select_or_slice(tx, p) for p in parts):
        return None
    takes = sum(isinstance(p, (SliceVariable, SymNodeVariable, TensorVariable)) or _is_integer(p) for p in parts)
    found: Variable = of
    dim = 0
    for part in parts:
        if isinstance(part, ConstantVariable) and part.value is Ellipsis:
            dim += of.fake.dim() - takes
        elif isinstance(part, ConstantVariable) and part.value is None:
            found = emit_node(tx, "call_method", "unsqueeze", [found, ConstantVariable(dim)])
            dim += 1
        elif isinstance(part, SliceVariable):
            whole = [SliceVariable([ConstantVariable(None)] * 3) for _ in range(dim)]
            inside = SliceVariable([_as_int(tx, p) for p in part.bounds])
            found = emit_node(tx, "call_function", operator.getitem, [found, TupleVariable([*whole, inside])])
            dim += 1
        else:
            found = emit_node(tx, "call_function", _SELECT, [found, ConstantVariable(dim), _as_int(tx, part)])
    return found


def convert_index_arrays(tx: Tracer, key: Variable) -> Variable:
    """Convert numpy arrays and ranges in a key to tensors and lists, as torch does.

    An array with 2 or more dims that is the whole key is unchanged: torch may read it as a tuple.
    """
    from engine.trace.variables.tensors.numpy_arrays import NumpyNdarrayVariable

    def positions(part: Variable, *, rows: bool) -> Variable:
        part = realize(tx, part)
        if isinstance(part, RangeVariable):
            return ListVariable([ConstantVariable(n) for n in part.value])
        if not isinstance(part, NumpyNdarrayVariable) or not (rows or part.tensor.fake.dim() < _MIN_NESTED_DIM):
            return part
        fake = part.tensor.fake
        return (
            part.tensor if fake.dtype in _INDEX_DTYPES and not (part.is_scalar and fake.dtype is torch.bool) else part
        )

    key = realize(tx, key)
    if not isinstance(key, TupleVariable):
        return positions(key, rows=False)
    parts = [positions(part, rows=True) for part in key.items]
    return (
        TupleVariable(parts)
        if any(isinstance(realize(tx, k), (NumpyNdarrayVariable, RangeVariable)) for k in key.items)
        else key
    )


def is_vmapped_index(tx: Tracer, key: Variable) -> bool:
    """Return True if a part of the key is an integer tensor that depends on a vmap input.

    Such a tensor has one value per sample, so it cannot become a number.
    """
    parts = [realize(tx, k) for k in key.items] if isinstance(key, TupleVariable) else [key]
    return any(_is_integer_scalar_tensor(p) and _depends_on_vmap_input(p.as_node_arg(tx)[0]) for p in parts)


def _depends_on_vmap_input(node: torch.fx.Node) -> bool:
    """Return True if the value of a node depends on a batched input of ``vmap``."""
    seen: set[torch.fx.Node] = set()
    todo = [node]
    while todo:
        one = todo.pop()
        if one in seen:
            continue
        seen.add(one)
        if one.meta.get(VMAP_META):
            return True
        todo += one.all_input_nodes
    return False


def vmap_getitem(of: torch.Tensor, key: Any) -> Any:
    """Compute ``of[key]`` under ``vmap``, on fake tensors."""
    return _under_vmap(operator.getitem, of, key)


def vmap_setitem(of: torch.Tensor, key: Any, value: Any) -> None:
    """Compute ``of[key] = value`` under ``vmap``, on fake tensors."""
    _under_vmap(operator.setitem, of, key, value)


def _under_vmap(act: Callable[..., Any], of: torch.Tensor, key: Any, *value: Any) -> Any:
    parts = list(key) if isinstance(key, tuple) else [key]
    places = [n for n, p in enumerate(parts) if isinstance(p, torch.Tensor)]

    def row(one: torch.Tensor, *positions: torch.Tensor) -> Any:
        filled = list(parts)
        for place, position in zip(places, positions, strict=True):
            filled[place] = position
        found = act(one, tuple(filled), *value)
        return one if found is None else found

    return torch.vmap(row)(of.unsqueeze(0), *(parts[n].unsqueeze(0) for n in places)).squeeze(0)


def _is_data_dependent(tx: Tracer, part: Variable) -> bool:
    if isinstance(part, SliceVariable):
        return any(_is_data_dependent(tx, realize(tx, p)) for p in part.bounds)
    return _is_integer_scalar_tensor(part) or (_is_symint(part) and has_unbacked_symbols(part.sym))


def _is_symint(part: Variable) -> TypeGuard[SymNodeVariable]:
    """Return True for a symbol of an integer."""
    return isinstance(part, SymNodeVariable) and part.python_type() is int


def _is_integer_scalar_tensor(part: Variable) -> bool:
    """Return True for a 0-dim integer tensor, which indexes like an integer."""
    return isinstance(part, TensorVariable) and part.fake.dim() == 0 and part.fake.dtype in _INT_DTYPES


def _is_select_or_slice(tx: Tracer, part: Variable) -> bool:
    if isinstance(part, SliceVariable):
        return all(_is_slice_bound(realize(tx, p)) for p in part.bounds)
    if isinstance(part, ConstantVariable):
        return part.value is None or part.value is Ellipsis or _is_integer(part)
    return _is_slice_bound(part)


def _is_slice_bound(part: Variable) -> bool:
    if isinstance(part, ConstantVariable):
        return part.value is None or _is_integer(part)
    return _is_integer_scalar_tensor(part) or _is_symint(part)


def _is_integer(part: Variable) -> bool:
    return isinstance(part, ConstantVariable) and type(part.value) is int


def _as_int(tx: Tracer, part: Variable) -> Variable:
    part = realize(tx, part)
    return part.call_method(tx, "item", [], {}) if isinstance(part, TensorVariable) else part
