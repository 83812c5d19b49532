"""Indirect writes: scatter, index_put, index_copy, embedding backward.

Sums use atomic adds, in float32 for 16-bit tensors. If one element is written twice, the order is undefined, as in
eager on a GPU.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from engine.ir.loop_ir.builder import LoopBuilder
from engine.ir.loop_ir.index_expr import ZERO, Size, as_size, contiguous_strides, flatten, product, unflatten
from engine.ir.loop_ir.ops import LoopIROp, compute_dtype
from engine.ir.loop_ir.tensor_def import Coordinates, TensorDef
from engine.lowering.context import LoweredTensor, LoweringContext
from engine.lowering.fallbacks.kinds import LoweringFallback, NotLowered
from engine.lowering.fusion.fusion_cost import build_unfused
from engine.lowering.ops.indexing import indexed_elements
from engine.lowering.ops.views import as_strided_index_map, at_least_1d, reshape
from engine.lowering.promotion import (
    broadcast_loader,
    broadcast_shape,
    canonical_dim,
    check_arguments,
    check_fill_value,
)
from engine.lowering.registry import register_lowering
from engine.lowering.result_strides import is_non_overlapping

aten = torch.ops.aten

ATOMIC_ADD_DTYPES = frozenset((torch.float32, torch.float64, torch.int32, torch.int64))
"""Dtypes for which every target has atomic adds."""

ScatterFn = Callable[[LoopBuilder, Coordinates], tuple[Coordinates, LoopIROp]]


def scatter_into(
    low: LoweringContext, a: LoweredTensor, ranges: Sequence[Size], write: ScatterFn, *, is_added: bool
) -> LoweredTensor:
    """Write or add to ``a`` the values that ``write`` returns for each position in ``ranges``.

    Raises:
        NotLowered: the dtype has no atomic add, or deterministic algorithms are enabled.
    """
    if torch.are_deterministic_algorithms_enabled():
        raise NotLowered(
            LoweringFallback.DETERMINISTIC, "deterministic algorithms are required, and atomic adds run in any order"
        )
    math_dtype = compute_dtype(a.dtype) if is_added else a.dtype
    if is_added and math_dtype not in ATOMIC_ADD_DTYPES:
        raise NotLowered(LoweringFallback.NO_ATOMIC_ADD, f"{str(math_dtype).removeprefix('torch.')} has no atomic add")
    name = low.node_name
    inner = name if math_dtype == a.dtype else f"{name}_total"
    scattered = low.scatter(
        a.shape, ranges, math_dtype, _initial_value(low, a, math_dtype, name), write, is_added=is_added, name=inner
    )
    return scattered if math_dtype == a.dtype else low.pointwise(a.shape, a.dtype, scattered.load)


def _initial_value(low: LoweringContext, a: LoweredTensor, math_dtype: torch.dtype, name: str) -> TensorDef | float:
    number = _constant_value(a.definition)
    if number is not None:
        return number
    if a.index_map is None and a.dtype == math_dtype:
        return a.definition
    return low.pointwise(a.shape, math_dtype, a.load, name=f"{name}_start").definition


def _constant_value(definition: TensorDef) -> float | None:
    """Return the constant value of all elements of a definition, None if they differ."""
    if definition.kind != "pointwise":
        return None
    ops = build_unfused(definition).ops
    is_constant = len(ops) == 1 and ops[0].name == "constant"
    return ops[0].value if is_constant else None


def scatter_along_dim(
    low: LoweringContext,
    a: LoweredTensor,
    dim: int,
    indices: LoweredTensor,
    value: Callable[[LoopBuilder, Coordinates], LoopIROp],
    *,
    is_added: bool,
) -> LoweredTensor:
    """Write or add a value to ``a`` at each index along a dimension."""
    row, dim = at_least_1d(a), canonical_dim(dim, len(a.shape))
    positions = at_least_1d(indices)

    def write(b: LoopBuilder, i: Coordinates) -> tuple[Coordinates, LoopIROp]:
        here = b.indirect_index(positions.load(b, i), row.shape[dim], wraps=False)
        return (*i[:dim], here, *i[dim + 1 :]), value(b, i if indices.shape else ())

    return reshape(scatter_into(low, row, positions.shape, write, is_added=is_added), a.shape)


@register_lowering(aten.scatter.src)
def scatter_src(
    low: LoweringContext, a: LoweredTensor, dim: int, indices: LoweredTensor, source: LoweredTensor
) -> LoweredTensor:
    return scatter_along_dim(low, a, dim, indices, source.loader(a.dtype), is_added=False)


@register_lowering(aten.scatter.value)
def scatter_value(
    low: LoweringContext, a: LoweredTensor, dim: int, indices: LoweredTensor, value: Any
) -> LoweredTensor:
    return scatter_along_dim(low, a, dim, indices, broadcast_loader(value, a.dtype, indices.shape), is_added=False)


@register_lowering(aten.put.default)
def put(
    low: LoweringContext, a: LoweredTensor, indices: LoweredTensor, source: LoweredTensor, accumulate: bool = False
) -> LoweredTensor:
    count = product(a.shape)
    if not a.shape or not indices.shape:
        raise NotLowered(LoweringFallback.ZERO_DIM, "a write to a 0-dim tensor has no lowering")
    math_dtype = compute_dtype(a.dtype) if accumulate else a.dtype

    def write(b: LoopBuilder, i: Coordinates) -> tuple[Coordinates, LoopIROp]:
        position = unflatten(b.indirect_index(indices.load(b, i), count), a.shape)
        return position, b.cast(
            source.load(b, unflatten(flatten(i, contiguous_strides(indices.shape)), source.shape)), math_dtype
        )

    return scatter_into(low, a, indices.shape, write, is_added=accumulate)


def scatter_rows(
    low: LoweringContext,
    a: LoweredTensor,
    dim: int,
    indices: LoweredTensor,
    source: LoweredTensor,
    alpha: Any,
    *,
    is_added: bool,
) -> LoweredTensor:
    """Write or add the rows of ``source`` to ``a``, at ``indices`` along ``dim``."""
    row, rows, positions = map(at_least_1d, (a, source, indices))
    dim = canonical_dim(dim, len(a.shape))
    check_rows(row, dim, positions, rows)
    math_dtype = compute_dtype(a.dtype)

    def write(b: LoopBuilder, i: Coordinates) -> tuple[Coordinates, LoopIROp]:
        value = b.cast(rows.load(b, i), math_dtype)
        if alpha != 1:
            value = value * alpha
        return (
            *i[:dim],
            b.indirect_index(positions.load(b, (i[dim],)), row.shape[dim], wraps=False),
            *i[dim + 1 :],
        ), value

    return reshape(scatter_into(low, row, rows.shape, write, is_added=is_added), a.shape)


@register_lowering(aten.index_copy.default)
def index_copy(
    low: LoweringContext, a: LoweredTensor, dim: int, indices: LoweredTensor, source: LoweredTensor
) -> LoweredTensor:
    return scatter_rows(low, a, dim, indices, source, 1, is_added=False)


@register_lowering(aten.index_put.default, aten._unsafe_index_put.default)
def index_put(
    low: LoweringContext,
    a: LoweredTensor,
    indices: Sequence[LoweredTensor | None],
    values: LoweredTensor,
    accumulate: bool = False,
    *_: Any,
) -> LoweredTensor:
    index_tensors = [t for t in indices if t is not None]
    if any(t.dtype in (torch.bool, torch.uint8) for t in index_tensors):
        return _masked_put(low, a, indices, values, accumulate)
    is_checked = low.current_node is None or low.current_node.target is not aten._unsafe_index_put.default
    for tensor in index_tensors:
        check_broadcasts(tensor, broadcast_shape(index_tensors))
    ranges, position = indexed_elements(a, indices, is_checked=is_checked)
    check_broadcasts(values, ranges)
    value = broadcast_loader(values, compute_dtype(a.dtype) if accumulate else a.dtype, ranges)

    def write(b: LoopBuilder, i: Coordinates) -> tuple[Coordinates, LoopIROp]:
        return position(b, i), value(b, i)

    return scatter_into(low, a, ranges, write, is_added=accumulate)


def check_rows(a: LoweredTensor, dim: int, indices: LoweredTensor, source: LoweredTensor) -> None:
    """Raise ``NotLowered`` if there may be another number or shape of rows to write."""
    check_arguments(
        tuple(source.shape) == (*a.shape[:dim], *indices.shape, *a.shape[dim + 1 :]), "a source of another shape"
    )


def check_broadcasts(source: LoweredTensor, shape: Sequence[Size]) -> None:
    """Raise ``NotLowered`` if a tensor may not broadcast to a shape.

    Fake tensors do not check what in-place operators write. ATen raises the error.
    """
    lead = len(shape) - len(source.shape)
    fits = lead >= 0 and all(s in (1, n) for s, n in zip(source.shape, shape[lead:], strict=True))
    check_arguments(fits, "a value of another shape")


def _masked_put(
    low: LoweringContext,
    a: LoweredTensor,
    indices: Sequence[LoweredTensor | None],
    values: LoweredTensor,
    accumulate: bool,
) -> LoweredTensor:
    """Lower ``a[mask] = number`` or ``a[:, mask] = number`` to a select for each element."""
    masks = [t for t in indices if t is not None]
    first = next(d for d, t in enumerate(indices) if t is not None)
    is_number = all(n == 1 for n in values.shape)
    if len(masks) != 1 or masks[0].dtype != torch.bool or first + len(masks[0].shape) > len(a.shape) or not is_number:
        raise NotLowered(
            LoweringFallback.BOOLEAN_INDEX, "the number of elements that a boolean index selects is data-dependent"
        )
    if accumulate:
        raise NotLowered(LoweringFallback.BOOLEAN_INDEX, "accumulation under a boolean index has no lowering")
    mask, value = masks[0], values.view((), lambda _: tuple(ZERO for _ in values.shape))
    last = first + len(mask.shape)
    check_arguments(tuple(mask.shape) == tuple(a.shape[first:last]), "a mask of another shape")
    check_fill_value(a.dtype, values)

    def body(b: LoopBuilder, i: Coordinates) -> LoopIROp:
        return b.where(mask.load(b, i[first:last]), b.cast(value.load(b, ()), a.dtype), a.load(b, i))

    return low.pointwise(a.shape, a.dtype, body)


@register_lowering(aten.as_strided_scatter.default)
def as_strided_scatter(
    low: LoweringContext,
    a: LoweredTensor,
    source: LoweredTensor,
    size: Sequence[Any],
    stride: Sequence[Any],
    offset: Any = None,
) -> LoweredTensor:
    """Write to the elements of a strided view of a tensor's memory."""
    mapping = as_strided_index_map(a, size, stride, offset)
    if not is_non_overlapping(source.shape, tuple(as_size(s) for s in stride)):
        raise NotLowered(
            LoweringFallback.OVERLAPPING_WRITE, "a write to a strided view whose elements overlap has no lowering"
        )
    return scatter_into(
        low, a, source.shape, lambda b, i: (mapping(i), b.cast(source.load(b, i), a.dtype)), is_added=False
    )


@register_lowering(aten.embedding_dense_backward.default)
def embedding_dense_backward(
    low: LoweringContext, grad: LoweredTensor, indices: LoweredTensor, rows: Any, padding: int, scale_by_frequency: bool
) -> LoweredTensor:
    """Add the gradient of each looked-up row to its row of the table."""
    if scale_by_frequency:
        raise NotLowered(LoweringFallback.EMBEDDING_OPTION, "the gradient for scale_grad_by_freq=True has no lowering")
    math_dtype = compute_dtype(grad.dtype)
    width = grad.shape[-1]
    table = low.full((as_size(rows), width), grad.dtype, 0.0, name="zeros")

    def write(b: LoopBuilder, i: Coordinates) -> tuple[Coordinates, LoopIROp]:
        token = indices.load(b, i[:-1])
        value = b.cast(grad.load(b, i), math_dtype)
        if padding >= 0:
            is_padding = token.equals(padding)
            value = b.where(is_padding, 0.0, value)
        return (b.indirect_index(token, table.shape[0], wraps=False), i[-1]), value

    return scatter_into(low, table, grad.shape, write, is_added=True)
