"""Decide which sizes and numbers become symbols."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import sympy
import torch
import torch.fx

from engine import errors
from engine.ir.annotations import DYNAMIC_DIMS_ATTR, STATIC_DIMS_ATTR
from engine.ir.guards.symbolic_shapes import MAX_FLOAT, SymbolicShapeGuard
from engine.ir.guards.tensors import is_dtensor_meta, strides_expr
from engine.ir.introspection.fakeable_tensors import inner_tensors, is_wrapper_subclass
from engine.ir.sources.attributes import AttrSource
from engine.ir.sources.base import Source
from engine.ir.sources.iterators import IteratorItemSource, iterator_state_source
from engine.ir.traced_frame import ALL_NUMBERS
from engine.records.trace import CHANGED_SIZE
from engine.torch_private import global_state
from engine.torch_private.global_state import is_listed_as_dynamic, is_listed_as_static, listed_range
from engine.torch_private.operators import torch_check
from engine.torch_private.symbolic_shapes import (
    ConstraintViolationError,
    DimDynamic,
    StatelessSymbolicContext,
    StrictMinMaxConstraint,
    SubclassSymbolicContext,
    is_nested_int,
)
from engine.torch_private.sympy_functions import ValueRanges, int_oo
from engine.trace.annotations import Tracer
from engine.trace.variables.base import Variable
from engine.trace.variables.tensors.sym_node import PYTHON_TYPES, SymNodeVariable

_MARKS = (
    "_dynamo_dynamic_indices",
    "_dynamo_weak_dynamic_indices",
    "_dynamo_unbacked_indices",
    "_dynamo_strict_unbacked_indices",
)
"""Attributes of tensors in which ``torch._dynamo`` keeps the marked dimensions."""
SPECIALIZATIONS_ATTR = "_specialize_on"
"""Attribute of a tensor: dict of dimension -> conditions on sizes that get a compilation."""
_STATIC_MARKS = (STATIC_DIMS_ATTR, global_state.STATIC_DIMS_ATTR)
_LISTED = "the user listed it as dynamic"


class _SizeOutOfRange(errors.SizeOutOfRange, ConstraintViolationError):
    """``SizeOutOfRange`` that is also an instance of torch's own error class."""


def check_in_range(source: Source, value: float, low: int | None, high: int | None, dim: int = -1) -> None:
    """Check a size of a tensor, or a number, against the user's range.

    Raises:
        errors.SizeOutOfRange: it is outside.
    """
    if (low is not None and value < low) or (high is not None and value > high):
        raise _SizeOutOfRange(source.expr, dim, int(value), low, high)


def symbolize_number(tx: Tracer, real: float, source: Source) -> Variable | None:
    """Create a symbol for an int or float that changes between calls; None for a constant."""
    low, high = listed_range(source.expr, tx.options.dynamic_ranges)
    check_in_range(source, real, low, high)
    reason = _dynamic_number_reason(tx, real, source)
    # sympy represents neither infinity nor the sign of zero
    is_negative_zero = real == 0 and math.copysign(1, real) < 0
    fits = abs(real) <= MAX_FLOAT and not is_negative_zero if type(real) is float else -(2**63) <= real < 2**63
    if not reason or not fits:
        return None
    env = tx.symbols.shape_env
    symbol: Any = env.create_unspecified_symbol(real, source=source, dynamic_dim=DimDynamic.DYNAMIC)
    make: Any = env.create_symintnode if type(real) is int else env.create_symfloatnode
    number = make(symbol, hint=real, source=source)
    if PYTHON_TYPES.get(type(number)) is None:
        return None
    tx.symbols.symbol_reasons[symbol] = reason
    tx.guard_type(
        real, source, f"it is a symbol of type {type(real).__name__}, because its value changed between calls"
    )
    if type(real) is float:
        is_finite = sympy.And(symbol >= -MAX_FLOAT, symbol <= MAX_FLOAT)
        _guard_range(tx, symbol, source, [is_finite], "symbols must be finite")
    else:
        bounds = ((sympy.Ge, low), (sympy.Le, high))
        ranges = [relation(symbol, bound) for relation, bound in bounds if bound is not None]
        _guard_range(tx, symbol, source, ranges, "the user gave it a range")
    value = SymNodeVariable(tx.graph.placeholder(source, number, real), number)
    value.source, value.symbol = source, symbol
    tx.symbols.symbolic_input_scalars.append(value)
    return value


def _guard_range(tx: Tracer, symbol: Any, source: Source, relations: Sequence[sympy.Basic], why: str) -> None:
    """Guard relations that put a number into a range."""
    for relation in relations:
        tx.guards.add(SymbolicShapeGuard(source, relation, ((symbol, source, -1),), cause=tx.guard_cause(why)))


def _dynamic_number_reason(tx: Tracer, real: float, source: Source) -> str:
    """Return the reason that a number becomes a symbol; empty for a constant."""
    if tx.options.dynamic is False or is_listed_as_static(source.expr):
        return ""
    if is_dynamic_number(tx, source):
        return f"its value changed between calls ({real!r} in this one)"
    if is_listed_as_dynamic(source.expr, tx.options.dynamic_sources):
        return _LISTED
    return "dynamic=True" if tx.options.dynamic is True and source.is_argument_or_item() else ""


def is_dynamic_number(tx: Tracer, source: Source) -> bool:
    """Return True if a number that changed between calls, or depends on one, may be a symbol."""
    varies = -1 in _automatic_dynamic_dims(tx, source) or source in tx.symbols.known_dynamic_sources
    return tx.options.dynamic is not False and varies


def _automatic_dynamic_dims(tx: Tracer, source: Source) -> frozenset[int]:
    """Return the dims of a source that changed between calls; -1 is the value of a number.

    For the next item of an iterator, these are the dims of any item of the underlying sequence.
    """
    seen = tx.request.dynamic_dims.get(source.expr, frozenset())
    for link in source.chain():
        if ALL_NUMBERS in (of_result := tx.request.dynamic_dims.get(link.expr, frozenset())):
            seen |= of_result | {-1}  # also of an item of a result: its sizes vary like those of the others
    next_item = next((link for link in source.chain() if isinstance(link, IteratorItemSource)), None)
    if next_item is None:
        return seen
    prefix = f"{iterator_state_source(next_item.base).expr}[1][0]["
    suffix = f"]{source.expr.removeprefix(next_item.expr)}"
    dims = (d for expr, d in tx.request.dynamic_dims.items() if expr.startswith(prefix) and expr.endswith(suffix))
    return seen.union(*dims)


def symbolic_context(tx: Tracer, tensor: torch.Tensor, source: Source) -> StatelessSymbolicContext[Any, Any] | None:
    """Return the symbolic context of an input and its inner tensors; None if all static."""
    if not _may_have_symbols(tx, tensor):
        return None
    if is_wrapper_subclass(tensor):
        if tensor._base is not None and is_wrapper_subclass(tensor._base):
            return None  # torch would make every dim of the base's inner tensors symbolic
        reasons = _inner_dim_reasons(tx, tensor, source, {}, isinstance(tensor, torch.nn.Parameter))
        if any(reasons.values()):
            ragged = [d for d, size in enumerate(tensor.shape) if is_nested_int(size)]
            reasons[source] |= dict.fromkeys(ragged, "its size is ragged")
    else:
        reasons = {source: _dynamic_dim_reasons(tx, tensor, source)}
    if not any(reasons.values()) and DimDynamic.DYNAMIC not in _dynamic_strides(tx, tensor, source):
        return None
    tx.symbols.dynamic_size_reasons.update(reasons)
    return _build_symbolic_context(tx, tensor, source, reasons)


def _may_have_symbols(tx: Tracer, tensor: torch.Tensor) -> bool:
    """Return True if a call, an option or a mark may make a size of an input a symbol."""
    return bool(
        tx.options.dynamic
        or tx.request.dynamic_dims
        or tx.options.dynamic_sources
        or global_state.lists_dynamic_sources()
    ) or may_be_marked(tensor)


def may_be_marked(tensor: torch.Tensor) -> bool:
    """Return True if a tensor or an inner tensor may have marks, which are attributes."""
    return bool(vars(tensor)) or is_wrapper_subclass(tensor)


def _dynamic_strides(tx: Tracer, tensor: torch.Tensor, source: Source) -> list[DimDynamic]:
    """Return per dimension whether its stride becomes a symbol: it changed between calls."""
    kinds = [DimDynamic.INFER_STRIDE] * tensor.dim()
    if tx.options.dynamic is not False and not is_wrapper_subclass(tensor):
        for d in tx.request.dynamic_dims.get(strides_expr(source), ()):
            if d < tensor.dim() and tensor.stride(d) > 1:
                kinds[d] = DimDynamic.DYNAMIC
    return kinds


def _dynamic_dim_reasons(tx: Tracer, tensor: torch.Tensor, source: Source) -> dict[int, str]:
    return {d: reason for d in range(tensor.dim()) if (reason := _dynamic_dim_reason(tx, tensor, source, d))}


def _inner_dim_reasons(
    tx: Tracer, tensor: torch.Tensor, source: Source, outer: dict[int, str], is_parameter: bool
) -> dict[Source, dict[int, str]]:
    """Return per inner tensor, the wrapper itself first, the reasons of its dynamic dims.

    Inner tensors with the outer shape vary with it. Those of a parameter stay static under ``dynamic=True``,
    like other parameters.
    """
    own_reasons = outer | (
        _dynamic_dim_reasons(tx, tensor, source) if not is_parameter or tx.options.dynamic is not True else {}
    )
    reasons = {source: own_reasons}
    for name, part in inner_tensors(tensor):
        reasons_of_outer = own_reasons if part.shape == tensor.shape else {}
        reasons |= _inner_dim_reasons(tx, part, AttrSource(source, name), reasons_of_outer, is_parameter)
    return reasons


def unify_inner_shapes(fake: Any, real: Any) -> None:
    """Equate the sizes of inner tensors that have the outer shape, so that they share symbols.

    The symbols of a DTensor that is evenly sharded are multiples of those of its local tensor.
    """
    is_dtensor = is_dtensor_meta(getattr(getattr(real, "_spec", None), "tensor_meta", None))
    for name, part in inner_tensors(real):
        inside = getattr(fake, name)
        if part.shape == real.shape or is_dtensor:
            for dim, size in enumerate(part.shape):
                if size and real.shape[dim] % size == 0:
                    torch_check(fake.shape[dim] == real.shape[dim] // size * inside.shape[dim])
        unify_inner_shapes(inside, part)


def _build_symbolic_context(
    tx: Tracer, tensor: torch.Tensor, source: Source, reasons: Mapping[Source, dict[int, str]]
) -> StatelessSymbolicContext[Any, Any]:
    why = reasons[source]
    kinds = [DimDynamic.DYNAMIC if d in why else DimDynamic.STATIC for d in range(tensor.dim())]
    if not is_wrapper_subclass(tensor):
        return StatelessSymbolicContext(
            dynamic_sizes=kinds,
            dynamic_strides=_dynamic_strides(tx, tensor, source),
            constraint_sizes=_dim_constraints(tx, tensor, source, why),
        )
    inner: dict[str, Any] = {
        name: _build_symbolic_context(tx, part, AttrSource(source, name), reasons)
        for name, part in inner_tensors(tensor)
    }
    return SubclassSymbolicContext(
        dynamic_sizes=kinds,
        constraint_sizes=_dim_constraints(tx, tensor, source, why),
        tensor_source=source,
        inner_contexts=inner,
    )


def _dynamic_dim_reason(tx: Tracer, tensor: torch.Tensor, source: Source, dim: int) -> str:
    """Return the reason that a dimension becomes a symbol; empty for a static one."""
    if tensor.shape[dim] <= 1 or any(dim in getattr(tensor, marks, ()) for marks in _STATIC_MARKS):
        return ""
    if dim in _marked_dynamic_dims(tensor):
        return "marked dynamic"
    if tx.options.dynamic is False or is_listed_as_static(source.expr, dim):
        return ""
    low, high = listed_range(source.expr, tx.options.dynamic_ranges, dim)
    if low is not None and low == high:
        return ""
    if dim in _automatic_dynamic_dims(tx, source):
        return CHANGED_SIZE
    if is_listed_as_dynamic(source.expr, tx.options.dynamic_sources, dim):
        return _LISTED
    return "dynamic=True" if tx.options.dynamic is True and not isinstance(tensor, torch.nn.Parameter) else ""


def _dim_constraints(tx: Tracer, tensor: torch.Tensor, source: Source, dims: Mapping[int, str]) -> list[Any]:
    """Return the bounds from ``mark_dynamic`` or ``dynamic_shapes`` per dimension."""
    ranges = {**size_ranges(tx, tensor, source), **getattr(tensor, DYNAMIC_DIMS_ATTR, {})}

    def bound(dim: int) -> Any:
        low, high = ranges.get(dim, (None, None)) if dim in dims else (None, None)
        size = tensor.shape[dim]
        if (low is None and high is None) or not (low or 0) <= size <= (size if high is None else high):
            return None
        return StrictMinMaxConstraint(
            vr=ValueRanges(max(2, low or 2), int_oo if high is None else high), warn_only=False
        )

    return [bound(d) for d in range(tensor.dim())]


def follow_specializations(tensor: torch.Tensor, fake: torch.Tensor) -> None:
    """Evaluate the user's conditions for each size (``specialize_on=``) until one is true.

    The results become guards, so that sizes for which a condition is true are compiled separately.
    """
    for dim, conditions in getattr(tensor, SPECIALIZATIONS_ATTR, {}).items():
        if hasattr(fake.shape[dim], "node"):
            any(condition(fake.shape[dim]) for condition in conditions or ())


def dims_marked_in_torch(tensor: torch.Tensor, marks: tuple[str, ...] = _MARKS) -> set[int]:
    """Return the dimensions that functions of ``torch._dynamo`` marked as dynamic."""
    return set().union(*[getattr(tensor, mark, ()) for mark in marks])


def size_ranges(tx: Tracer, tensor: torch.Tensor, source: Source) -> dict[int, tuple[int | None, int | None]]:
    """Return the bounds per dimension from ``dynamic_shapes`` or torch's ``mark_dynamic``."""
    listed = {d: listed_range(source.expr, tx.options.dynamic_ranges, d) for d in range(tensor.dim())}
    ranges = getattr(tensor, "_dynamo_dynamic_range", ())
    return listed | {r.dim: (r.min, r.max) for r in ranges if (r.min, r.max) != (None, None)}


def _marked_dynamic_dims(tensor: torch.Tensor) -> set[int]:
    ours = getattr(tensor, DYNAMIC_DIMS_ATTR, {})
    return set(ours) | dims_marked_in_torch(tensor)
