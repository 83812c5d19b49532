"""Tensor indexing by integers known only at run time, by numpy arrays, and under vmap.

An index with run-time integers becomes one select or slice per part of the key, as in eager mode.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable
from typing import Any

import torch
import torch.fx

from engine.ir.graph_callable import GraphCallable
from engine.ir.introspection.fakeable_tensors import is_wrapper_subclass
from engine.ir.introspection.symbols import has_unbacked_symbols
from engine.ir.node_values import ancestors_of
from engine.options import config
from engine.trace.annotations import TensorVariable, Tracer
from engine.trace.emit_node import dispatch_torch_function, emit_node
from engine.trace.graph_builder import VMAP_META
from engine.trace.variables.base import NONE, ConstantVariable, Variable, realize
from engine.trace.variables.containers.ranges_and_slices import SliceVariable
from engine.trace.variables.containers.sequences import ListVariable, TupleVariable

_INT_DTYPES = frozenset((torch.int8, torch.int16, torch.int32, torch.int64))


def _select(of: torch.Tensor, dim: int, index: int | torch.SymInt) -> torch.Tensor:
    return of[(slice(None),) * dim + (index,)] if isinstance(index, int) else of.select(dim, index)


_SELECT = GraphCallable("select", _select, counts_writes=True)
"""A select in the graph; an int index uses ``[]``, so index errors match eager mode."""


def index_tensor(tx: Tracer, of: TensorVariable, key: Variable) -> Variable:
    """Trace ``of[key]``."""
    if tx.torch_state.scalar_tensors_index:
        return _index_by_tensors(tx, of, key)
    by_protocol = dispatch_torch_function(tx, "call_function", operator.getitem, [of, key], {})
    if by_protocol is not None:
        return by_protocol
    key = convert_index_arrays(tx, key)
    if is_vmapped_index(tx, key):
        return emit_node(
            tx, "call_function", operator.getitem, [of, key], run=functools.partial(_under_vmap, operator.getitem)
        )
    # A mode must see the key unchanged.
    selected = None if tx.torch_state.function_modes else index_by_select(tx, of, key)
    return emit_node(tx, "call_function", operator.getitem, [of, key]) if selected is None else selected


def assign_index(tx: Tracer, of: TensorVariable, key: Variable, value: Variable) -> None:
    """Trace ``of[key] = value``."""
    if dispatch_torch_function(tx, "call_function", operator.setitem, [of, key, value], {}) is not None:
        return
    key = convert_index_arrays(tx, key)
    if is_vmapped_index(tx, key):
        run = functools.partial(_under_vmap, operator.setitem)
        emit_node(tx, "call_function", operator.setitem, [of, key, value], run=run)
        return
    selected = None if tx.torch_state.function_modes else index_by_select(tx, of, key)
    target: list[Variable] = [of, key] if selected is None else [selected, ConstantVariable(Ellipsis)]
    emit_node(tx, "call_function", operator.setitem, [*target, value])


def _index_by_tensors(tx: Tracer, of: TensorVariable, key: Variable) -> Variable:
    parts = _key_parts(tx, key)
    if any(p.fake is None for p in parts):
        return emit_node(tx, "call_function", operator.getitem, [of, key])
    return emit_node(tx, "call_function", torch.ops.aten.index, [of, ListVariable(parts)])


def _key_parts(tx: Tracer, key: Variable) -> list[Variable]:
    """Return the parts of a key: the items of a tuple, or the key itself."""
    key = realize(tx, key)
    return [realize(tx, k) for k in key.argument_items()] if issubclass(key.python_type(), tuple) else [key]


def index_by_select(tx: Tracer, of: TensorVariable, key: Variable) -> Variable | None:
    """Emit ``of[key]`` as selects and slices if the key has a data-dependent or symbolic part.

    Return None for any other key.
    """
    parts = _key_parts(tx, key)
    is_dependent = any(_is_data_dependent(tx, p) for p in parts)
    if is_wrapper_subclass(of.fake) or not (is_dependent or any(map(_is_symint, parts))):
        return None
    if (is_dependent and not config.capture_scalar_outputs) or not all(_is_select_or_slice(tx, p) for p in parts):
        return None
    num_dims_used = sum(p.as_python_object() is not None and p.as_python_object() is not Ellipsis for p in parts)
    view: Variable = of
    dim = 0
    for part in parts:
        literal = part.as_python_object()
        if literal is Ellipsis:
            dim += of.fake.dim() - num_dims_used
        elif literal is None:
            view = emit_node(tx, "call_method", "unsqueeze", [view, ConstantVariable(dim)])
            dim += 1
        elif part.python_type() is slice:
            leading = [SliceVariable([NONE] * 3) for _ in range(dim)]
            inside = SliceVariable([realize(tx, p).as_sizes(tx) for p in part.child_variables()])
            view = emit_node(tx, "call_function", operator.getitem, [view, TupleVariable([*leading, inside])])
            dim += 1
        else:
            view = emit_node(tx, "call_function", _SELECT, [view, ConstantVariable(dim), part.as_sizes(tx)])
    return view


def convert_index_arrays(tx: Tracer, key: Variable) -> Variable:
    """Convert arrays, ranges and lists of symbols in a key to tensors and lists."""
    key = realize(tx, key)
    if not issubclass(key.python_type(), tuple):
        return _index_from_symbols(tx, key.as_tensor_index(tx, in_tuple=False))
    parts = [realize(tx, part) for part in key.argument_items()]
    converted = [_index_from_symbols(tx, part.as_tensor_index(tx, in_tuple=True)) for part in parts]
    return TupleVariable(converted) if any(a is not b for a, b in zip(parts, converted, strict=True)) else key


def _index_from_symbols(tx: Tracer, key: Variable) -> Variable:
    """Return a list of ints with symbols as a tensor; torch would specialize them."""
    if key.python_type() is not list:
        return key
    items = [realize(tx, item) for item in key.argument_items()]
    if not any(map(_is_symint, items)) or any(item.python_type() is not int for item in items):
        return key
    return realize(tx, tx.wrap_static(torch.tensor).call(tx, [key], {}))


def is_vmapped_index(tx: Tracer, key: Variable) -> bool:
    """Return True if a part of the key is an integer tensor that depends on a vmap input.

    Such a tensor has one value per sample, so it cannot become a number.
    """
    return any(
        _is_integer_scalar_tensor(p) and _depends_on_vmap_input(p.as_node_arg(tx)[0]) for p in _key_parts(tx, key)
    )


def _depends_on_vmap_input(node: torch.fx.Node) -> bool:
    """Return True if the value of a node depends on a batched input of ``vmap``."""
    return any(n.meta.get(VMAP_META) for n in ancestors_of([node], ()))


def _under_vmap(access: Callable[..., Any], of: torch.Tensor, key: Any, *value: Any) -> Any:
    """Compute ``of[key]`` or ``of[key] = value`` under ``vmap``, on fake tensors."""
    parts = list(key) if isinstance(key, tuple) else [key]
    dims = [n for n, p in enumerate(parts) if isinstance(p, torch.Tensor)]

    def access_sample(sample: torch.Tensor, *positions: torch.Tensor) -> Any:
        sample_key = list(parts)
        for dim, position in zip(dims, positions, strict=True):
            sample_key[dim] = position
        item = access(sample, tuple(sample_key), *value)
        return sample if item is None else item

    return torch.vmap(access_sample)(of.unsqueeze(0), *(parts[n].unsqueeze(0) for n in dims)).squeeze(0)


def _is_data_dependent(tx: Tracer, part: Variable) -> bool:
    if part.python_type() is slice:
        return any(_is_data_dependent(tx, realize(tx, p)) for p in part.child_variables())
    return _is_integer_scalar_tensor(part) or (_is_symint(part) and has_unbacked_symbols(part.sym))


def _is_symint(part: Variable) -> bool:
    """Return True for a symbol of an integer."""
    return part.sym is not None and part.python_type() is int


def _is_integer_scalar_tensor(part: Variable) -> bool:
    """Return True for a 0-dim integer tensor, which indexes like an integer."""
    return part.fake is not None and part.fake.dim() == 0 and part.fake.dtype in _INT_DTYPES


def _is_select_or_slice(tx: Tracer, part: Variable) -> bool:
    if part.python_type() is slice:
        return all(_is_slice_bound(realize(tx, p)) for p in part.child_variables())
    return part.as_python_object() is Ellipsis or _is_slice_bound(part)


def _is_slice_bound(part: Variable) -> bool:
    literal = part.as_python_object()
    return literal is None or type(literal) is int or _is_integer_scalar_tensor(part) or _is_symint(part)
