"""Indirect writes: scatter, index_put, index_add and what gradients of look-ups are made of.

Sums go through atomic additions, in float32 where the tensor has 16 bits. Where a program writes one element twice, which write stays
is as open as it is in eager on a GPU.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from engine.ir.index import ZERO, Size, contiguous_strides, flatten, plain, product, unflatten
from engine.ir.loops import Builder, Coordinates, Def, Op, compute_dtype
from engine.lowering.fuse import probed
from engine.lowering.ops.views import as_row, broadcast_to, reshape, walk_over_memory
from engine.lowering.table import (
    Lowering,
    NotLowered,
    Tensor,
    broadcast_shape,
    check_loopable,
    element,
    is_apart,
    lowers,
    positive_dim,
)

aten = torch.ops.aten

ATOMIC = frozenset((torch.float32, torch.float64, torch.int32, torch.int64))
"""Types in which every target adds atomically."""

Write = Callable[[Builder, Coordinates], tuple[Coordinates, Op]]


def scattered(low: Lowering, a: Tensor, ranges: Sequence[Size], write: Write, *, is_added: bool) -> Tensor:
    """``a`` with what ``write`` gives for each position in ``ranges`` written or added.

    Raises:
        NotLowered: the type does not add atomically, or deterministic algorithms are asked for.
    """
    check_loopable(a)
    if torch.are_deterministic_algorithms_enabled():
        raise NotLowered("deterministic algorithms are asked for, and writes of many programs come in any order")
    held = compute_dtype(a.dtype) if is_added else a.dtype
    if is_added and held not in ATOMIC:
        raise NotLowered(f"{str(held).removeprefix('torch.')} does not add atomically")
    name = low.node.name if low.node is not None else "scatter"
    inner = name if held == a.dtype else f"{name}_total"
    made = low.scatter(a.shape, ranges, held, _start(low, a, held, name), write, is_added=is_added, name=inner)
    return made if held == a.dtype else low.pointwise(a.shape, a.dtype, made.at)


def _start(low: Lowering, a: Tensor, held: torch.dtype, name: str) -> Def | float:
    number = _number(a.base)
    if number is not None:
        return number
    if a.mapping is None and a.dtype == held:
        return a.base
    return low.pointwise(a.shape, held, a.at, name=f"{name}_start").base


def _number(made: Def) -> float | None:
    """The number that every element of a Def is, None where they differ."""
    if made.kind != "pointwise":
        return None
    ops = probed(made).ops
    is_constant = len(ops) == 1 and ops[0].name == "constant"
    return ops[0].value if is_constant else None


def along(
    low: Lowering, a: Tensor, dim: int, indices: Tensor, value: Callable[[Builder, Coordinates], Op], *, is_added: bool
) -> Tensor:
    """``a`` with a value written or added at each index along a dimension."""
    row, dim = as_row(a), positive_dim(dim, len(a.shape))
    places = as_row(indices)

    def write(b: Builder, i: Coordinates) -> tuple[Coordinates, Op]:
        here = b.picked(places.at(b, i), row.shape[dim], wraps=False)
        return (*i[:dim], here, *i[dim + 1 :]), value(b, i if indices.shape else ())

    return reshape(scattered(low, row, places.shape, write, is_added=is_added), a.shape)


@lowers(aten.scatter.src)
def scatter_src(low: Lowering, a: Tensor, dim: int, indices: Tensor, source: Tensor) -> Tensor:
    return along(low, a, dim, indices, lambda b, i: b.cast(source.at(b, i), a.dtype), is_added=False)


@lowers(aten.scatter.value)
def scatter_value(low: Lowering, a: Tensor, dim: int, indices: Tensor, value: Any) -> Tensor:
    return along(low, a, dim, indices, element(value, a.dtype, indices.shape), is_added=False)


@lowers(aten.put.default)
def put(low: Lowering, a: Tensor, indices: Tensor, source: Tensor, accumulate: bool = False) -> Tensor:
    count = product(a.shape)
    if not a.shape or not indices.shape:
        raise NotLowered("writing into a scalar is done by ATen")
    held = compute_dtype(a.dtype) if accumulate else a.dtype

    def write(b: Builder, i: Coordinates) -> tuple[Coordinates, Op]:
        place = unflatten(b.picked(indices.at(b, i), count), a.shape)
        return place, b.cast(source.at(b, unflatten(flatten(i, contiguous_strides(indices.shape)), source.shape)), held)

    return scattered(low, a, indices.shape, write, is_added=accumulate)


def rows_put(
    low: Lowering, a: Tensor, dim: int, indices: Tensor, source: Tensor, alpha: Any, *, is_added: bool
) -> Tensor:
    """``a`` with the rows of ``source`` written or added at the places along ``dim`` that ``indices`` name."""
    row, rows, places, dim = as_row(a), as_row(source), as_row(indices), positive_dim(dim, len(a.shape))
    held = compute_dtype(a.dtype)

    def write(b: Builder, i: Coordinates) -> tuple[Coordinates, Op]:
        value = b.cast(rows.at(b, i), held)
        if alpha != 1:
            value = b.call("mul", value, b.constant(alpha, held))
        return (*i[:dim], b.picked(places.at(b, (i[dim],)), row.shape[dim], wraps=False), *i[dim + 1 :]), value

    return reshape(scattered(low, row, rows.shape, write, is_added=is_added), a.shape)


@lowers(aten.index_copy.default)
def index_copy(low: Lowering, a: Tensor, dim: int, indices: Tensor, source: Tensor) -> Tensor:
    return rows_put(low, a, dim, indices, source, 1, is_added=False)


@lowers(aten.index_put.default, aten._unsafe_index_put.default)
def index_put(
    low: Lowering, a: Tensor, indices: Sequence[Tensor | None], values: Tensor, accumulate: bool = False, *_: Any
) -> Tensor:
    check_loopable(a, values)
    given = [t for t in indices if t is not None]
    if any(t.dtype in (torch.bool, torch.uint8) for t in given):
        return _masked_put(low, a, indices, values, accumulate)
    picked_shape = broadcast_shape(given)
    spread = {d: broadcast_to(t, picked_shape) for d, t in enumerate(indices) if t is not None}
    places = sorted(spread)
    others = [d for d in range(len(a.shape)) if d not in spread]
    start = places[0] if places == list(range(places[0], places[0] + len(places))) else 0
    rest = tuple(a.shape[d] for d in others)
    ranges = (*rest[:start], *picked_shape, *rest[start:])
    held = compute_dtype(a.dtype) if accumulate else a.dtype
    value = element(values, held, ranges)
    is_checked = low.node is None or low.node.target is not aten._unsafe_index_put.default

    def write(b: Builder, i: Coordinates) -> tuple[Coordinates, Op]:
        where = i[start : start + len(picked_shape)]
        kept = dict(zip(others, (*i[:start], *i[start + len(picked_shape) :]), strict=True))
        place = tuple(
            b.picked(spread[d].at(b, where), a.shape[d], is_checked=is_checked) if d in spread else kept[d]
            for d in range(len(a.shape))
        )
        return place, value(b, i)

    return scattered(low, a, ranges, write, is_added=accumulate)


def _masked_put(low: Lowering, a: Tensor, indices: Sequence[Tensor | None], values: Tensor, accumulate: bool) -> Tensor:
    """``a[mask] = number``, or ``a[:, mask] = number``: a choice for each element."""
    given = [t for t in indices if t is not None]
    first = next(d for d, t in enumerate(indices) if t is not None)
    is_number = all(n == 1 for n in values.shape)
    if len(given) != 1 or given[0].dtype != torch.bool or first + len(given[0].shape) > len(a.shape) or not is_number:
        raise NotLowered("how many elements a boolean index picks depends on the data")
    if accumulate:
        raise NotLowered("adding where a boolean index is true is done by ATen")
    mask, value = given[0], values.view((), lambda _: tuple(ZERO for _ in values.shape))
    last = first + len(mask.shape)

    def body(b: Builder, i: Coordinates) -> Op:
        return b.where(mask.at(b, i[first:last]), b.cast(value.at(b, ()), a.dtype), a.at(b, i))

    return low.pointwise(a.shape, a.dtype, body)


@lowers(aten.as_strided_scatter.default)
def as_strided_scatter(
    low: Lowering, a: Tensor, source: Tensor, size: Sequence[Any], stride: Sequence[Any], offset: Any = None
) -> Tensor:
    """A walk over a tensor's memory, written along."""
    check_loopable(a, source)
    mapping = walk_over_memory(a, stride, offset)
    if not is_apart(source.shape, tuple(plain(s) for s in stride)):
        raise NotLowered("a walk that comes by one place several times is written by ATen")
    return scattered(low, a, source.shape, lambda b, i: (mapping(i), b.cast(source.at(b, i), a.dtype)), is_added=False)


@lowers(aten.embedding_dense_backward.default)
def embedding_dense_backward(
    low: Lowering, grad: Tensor, indices: Tensor, rows: Any, padding: int, scale_by_frequency: bool
) -> Tensor:
    """The gradient of a table: each looked-up row's gradient added to its place."""
    check_loopable(grad)
    if scale_by_frequency:
        raise NotLowered("gradients divided by how often a row was looked up are computed by ATen")
    held = compute_dtype(grad.dtype)
    width = grad.shape[-1]
    table = low.pointwise((plain(rows), width), grad.dtype, lambda b, i: b.constant(0.0, grad.dtype), name="zeros")

    def write(b: Builder, i: Coordinates) -> tuple[Coordinates, Op]:
        token = indices.at(b, i[:-1])
        value = b.cast(grad.at(b, i), held)
        if padding >= 0:
            is_padding = b.call("eq", token, b.constant(padding, token.dtype), dtype=torch.bool)
            value = b.where(is_padding, b.constant(0.0, held), value)
        return (b.picked(token, table.shape[0], wraps=False), i[-1]), value

    return scattered(low, table, grad.shape, write, is_added=True)
