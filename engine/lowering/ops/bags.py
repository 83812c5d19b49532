"""Rows of a table that are looked up and summed in bags, and the gradients of that."""

from __future__ import annotations

from typing import Any

import torch

from engine.ir.index import plain
from engine.ir.loops import Builder, Coordinates, Op, compute_dtype
from engine.lowering.ops.reductions import reduce
from engine.lowering.ops.scatters import scattered
from engine.lowering.ops.searching import searched
from engine.lowering.table import Lowering, NotLowered, Tensor, check_loopable, lowers, result_value, sizes_of

aten = torch.ops.aten

SUM, MEAN, LARGEST = 0, 1, 2
"""How a bag's rows are put together."""


def _name(low: Lowering) -> str:
    return low.node.name if low.node is not None else "bags"


def _bags(low: Lowering, indices: Tensor, offsets: Tensor) -> Tensor:
    """Which bag each index is in: how many begin at or before it, less one."""
    places = low.pointwise(
        indices.shape, torch.int64, lambda b, i: b.cast(b.position(i[0]), torch.int64), name=f"{_name(low)}_places"
    )
    return searched(low, offsets, places, None, torch.int64, right=True)


def _is_left_out(b: Builder, index: Op, padding: int) -> Op | None:
    return None if padding < 0 else b.call("eq", index, b.constant(padding, index.dtype), dtype=torch.bool)


def _kept(b: Builder, index: Op, padding: int, value: Op) -> Op:
    """A value, nothing where the index is the one that pads."""
    left_out = _is_left_out(b, index, padding)
    return value if left_out is None else b.where(left_out, b.constant(0, value.dtype), value)


@lowers(aten._embedding_bag.default, aten._embedding_bag_forward_only.default)
def embedding_bag(
    low: Lowering,
    weight: Tensor,
    indices: Tensor,
    offsets: Tensor,
    scale_by_frequency: bool = False,
    mode: int = SUM,
    sparse: bool = False,
    per_sample: Tensor | None = None,
    include_last: bool = False,
    padding: int = -1,
) -> tuple[Tensor, ...]:
    """``(sums or means, each index's bag, how many indices a bag counts, the same again)``: rows are added to their bags atomically."""
    check_loopable(weight)
    if mode == LARGEST:
        raise NotLowered("the largest of each bag is found by ATen")
    made, bag_of_each, size_of_each, largest = result_value(low)
    if len(indices.shape) != 1 or 0 in indices.shape or 0 in made.shape:
        raise NotLowered("empty bags are left to ATen")
    bags, count = sizes_of(made)[0], indices.shape[0]
    held = compute_dtype(weight.dtype)
    places = _bags(low, indices, offsets)

    def bag(b: Builder, i: Coordinates) -> Any:
        """The bag of an index; those behind the last bag's end are in none, and left out where they would be written."""
        return b.picked(b.call("sub", places.at(b, i), b.constant(1, torch.int64)), bags, wraps=False, is_checked=False)

    def add(b: Builder, i: Coordinates) -> tuple[Coordinates, Op]:
        index = indices.at(b, i[:1])
        value = b.cast(weight.at(b, (b.picked(index, weight.shape[0], wraps=False), i[1])), held)
        if per_sample is not None:
            value = b.call("mul", value, b.cast(per_sample.at(b, i[:1]), held))
        return (bag(b, i[:1]), i[1]), _kept(b, index, padding, value)

    def tally(b: Builder, i: Coordinates) -> tuple[Coordinates, Op]:
        return (bag(b, i),), _kept(b, indices.at(b, i), padding, b.constant(1, torch.int64))

    zeros = low.pointwise((bags, weight.shape[1]), held, lambda b, i: b.constant(0.0, held), name=f"{_name(low)}_zeros")
    none = low.pointwise((bags,), torch.int64, lambda b, i: b.constant(0, torch.int64), name=f"{_name(low)}_none")
    sums = scattered(low, zeros, (count, weight.shape[1]), add, is_added=True)
    counts = scattered(low, none, (count,), tally, is_added=True)

    def result(b: Builder, i: Coordinates) -> Op:
        value = sums.at(b, i)
        if mode == SUM:
            return value
        size = b.call("maximum", counts.at(b, i[:1]), b.constant(1, torch.int64))
        return b.call("div", value, b.cast(size, held))

    def owner(b: Builder, i: Coordinates) -> Op:
        return b.cast(b.call("sub", places.at(b, i), b.constant(1, torch.int64)), bag_of_each.dtype)

    return (
        low.pointwise(sizes_of(made), made.dtype, result),
        low.pointwise(sizes_of(bag_of_each), bag_of_each.dtype, owner, name=f"{_name(low)}_bags"),
        low.pointwise(
            sizes_of(size_of_each), size_of_each.dtype, lambda b, i: b.cast(counts.at(b, i), size_of_each.dtype)
        ),
        low.pointwise(sizes_of(largest), largest.dtype, lambda b, i: b.cast(counts.at(b, i), largest.dtype)),
    )


@lowers(aten._embedding_bag_dense_backward.default)
def embedding_bag_dense_backward(
    low: Lowering,
    grad: Tensor,
    indices: Tensor,
    bag_of_each: Tensor,
    size_of_each: Tensor,
    largest: Tensor,
    rows: Any,
    scale_by_frequency: bool,
    mode: int,
    per_sample: Tensor | None,
    padding: int = -1,
) -> Tensor:
    """Each looked-up row gets its bag's gradient, of a mean its share."""
    check_loopable(grad)
    if mode == LARGEST or scale_by_frequency:
        raise NotLowered("gradients of largest rows, or divided by how often a row was looked up, are computed by ATen")
    if 0 in indices.shape or 0 in grad.shape or 0 in bag_of_each.shape:
        raise NotLowered("empty bags are left to ATen")
    held = compute_dtype(grad.dtype)
    table = low.pointwise((plain(rows), grad.shape[1]), grad.dtype, lambda b, i: b.constant(0.0, grad.dtype))

    def write(b: Builder, i: Coordinates) -> tuple[Coordinates, Op]:
        index = indices.at(b, i[:1])
        bag = b.picked(bag_of_each.at(b, i[:1]), grad.shape[0], wraps=False)
        value = b.cast(grad.at(b, (bag, i[1])), held)
        if per_sample is not None:
            value = b.call("mul", value, b.cast(per_sample.at(b, i[:1]), held))
        if mode == MEAN:
            size = size_of_each.at(b, (bag,))
            value = b.call("div", value, b.cast(b.call("maximum", size, b.constant(1, size.dtype)), held))
        return (b.picked(index, table.shape[0], wraps=False), i[1]), _kept(b, index, padding, value)

    return scattered(low, table, (indices.shape[0], grad.shape[1]), write, is_added=True)


@lowers(aten._embedding_bag_per_sample_weights_backward.default)
def embedding_bag_per_sample_weights_backward(
    low: Lowering,
    grad: Tensor,
    weight: Tensor,
    indices: Tensor,
    offsets: Tensor,
    bag_of_each: Tensor,
    mode: int,
    padding: int = -1,
) -> Tensor:
    """The product of each looked-up row with its bag's gradient."""
    check_loopable(grad, weight)
    if mode != SUM or 0 in indices.shape or 0 in grad.shape:
        raise NotLowered("weights of empty bags are left to ATen")
    places = bag_of_each
    if 0 in bag_of_each.shape:
        after = _bags(low, indices, offsets)
        one = torch.int64
        places = low.pointwise(indices.shape, one, lambda b, i: b.call("sub", after.at(b, i), b.constant(1, one)))
    held = compute_dtype(grad.dtype)
    each = Tensor((indices.shape[0], grad.shape[1]), grad.base)

    def product(b: Builder, i: Coordinates) -> Op:
        index = indices.at(b, i[:1])
        bag = b.picked(places.at(b, i[:1]), grad.shape[0], wraps=False, is_checked=False)
        row = b.picked(index, weight.shape[0], wraps=False)
        value = b.call("mul", b.cast(grad.at(b, (bag, i[1])), held), b.cast(weight.at(b, (row, i[1])), held))
        return _kept(b, index, padding, value)

    return reduce(low, "sum", each, (1,), False, grad.dtype, product)
