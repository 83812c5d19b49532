"""``embedding_bag`` and its gradients."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from engine.ir.loop_ir.builder import LoopBuilder
from engine.ir.loop_ir.index_expr import Size, as_size
from engine.ir.loop_ir.ops import LoopIROp, compute_dtype
from engine.ir.loop_ir.tensor_def import Coordinates
from engine.lowering.context import LoweredTensor, LoweringContext, fake_result
from engine.lowering.fallbacks.kinds import LoweringFallback, NotLowered
from engine.lowering.ops.reductions import reduce
from engine.lowering.ops.scatter import scatter_into
from engine.lowering.ops.searchsorted import binary_search
from engine.lowering.registry import register_lowering
from engine.lowering.result_strides import symbolic_shape

aten = torch.ops.aten

SUM, MEAN, MAX = 0, 1, 2
"""Modes of ``embedding_bag``, numbered as in ATen."""


def _bag_of_each_index(low: LoweringContext, indices: LoweredTensor, offsets: LoweredTensor) -> LoweredTensor:
    """Count the bags that start at or before each index: the number of its bag, plus one."""
    positions = low.pointwise(
        indices.shape,
        torch.int64,
        lambda b, i: b.cast(b.index_value(i[0]), torch.int64),
        name=f"{low.node_name}_places",
    )
    name = "an embedding bag has no lowering for offsets"
    return binary_search(low, offsets, positions, torch.int64, right=True, rows_name=name)


def _zero_if_padding(b: LoopBuilder, index: LoopIROp, padding: int, value: LoopIROp) -> LoopIROp:
    return value if padding < 0 else b.where(index.equals(padding), 0, value)


@dataclass(frozen=True)
class _Bags:
    """Sums over the indices of each bag.

    ``bag_numbers``: number of each index's bag, plus one.
    """

    low: LoweringContext
    indices: LoweredTensor
    bag_numbers: LoweredTensor
    count: Size
    padding: int

    def _bag(self, b: LoopBuilder, i: Coordinates) -> Any:
        """Return the bag of an index. Indices after the last bag have none and are not written."""
        bag = self.bag_numbers.load(b, i) - 1
        return b.indirect_index(bag, self.count, wraps=False, is_checked=False)

    def sums(self, zeros: LoweredTensor, weight: LoweredTensor, per_sample: LoweredTensor | None) -> LoweredTensor:
        """Add the looked-up rows of each bag to zeros."""
        math_dtype, indices = zeros.dtype, self.indices

        def add(b: LoopBuilder, i: Coordinates) -> tuple[Coordinates, LoopIROp]:
            index = indices.load(b, i[:1])
            value = b.cast(weight.load(b, (b.indirect_index(index, weight.shape[0], wraps=False), i[1])), math_dtype)
            if per_sample is not None:
                value = value * b.cast(per_sample.load(b, i[:1]), math_dtype)
            return (self._bag(b, i[:1]), i[1]), _zero_if_padding(b, index, self.padding, value)

        return scatter_into(self.low, zeros, (indices.shape[0], weight.shape[1]), add, is_added=True)

    def counts(self, none: LoweredTensor) -> LoweredTensor:
        """Add the number of indices of each bag to zeros."""

        def tally(b: LoopBuilder, i: Coordinates) -> tuple[Coordinates, LoopIROp]:
            one = b.constant(1, torch.int64)
            return (self._bag(b, i),), _zero_if_padding(b, self.indices.load(b, i), self.padding, one)

        return scatter_into(self.low, none, (self.indices.shape[0],), tally, is_added=True)


def _check_nonempty(*tensors: Any) -> None:
    if any(0 in t.shape for t in tensors):
        raise NotLowered(LoweringFallback.EMPTY_INPUT, "embedding_bag without elements has no lowering")


@register_lowering(aten._embedding_bag.default, aten._embedding_bag_forward_only.default)
def embedding_bag(
    low: LoweringContext,
    weight: LoweredTensor,
    indices: LoweredTensor,
    offsets: LoweredTensor,
    scale_by_frequency: bool = False,
    mode: int = SUM,
    sparse: bool = False,
    per_sample: LoweredTensor | None = None,
    include_last: bool = False,
    padding: int = -1,
) -> tuple[LoweredTensor, ...]:
    """Return ``(result, bag of each index, bag sizes, bag sizes)``.

    Atomic adds sum the rows of each bag.
    """
    if mode == MAX:
        raise NotLowered(LoweringFallback.EMBEDDING_OPTION, "embedding_bag with mode 'max' has no lowering")
    fake_bags, bag_of_each, size_of_each, largest = fake_result(low)
    _check_nonempty(indices, fake_bags)
    math_dtype, positions = compute_dtype(weight.dtype), _bag_of_each_index(low, indices, offsets)
    bags, name = _Bags(low, indices, positions, symbolic_shape(fake_bags)[0], padding), low.node_name
    width, number = weight.shape[1], torch.int64
    zeros = low.full((bags.count, width), math_dtype, 0.0, name=f"{name}_zeros")
    none = low.full((bags.count,), number, 0, name=f"{name}_none")
    sums, counts = bags.sums(zeros, weight, per_sample), bags.counts(none)

    def result(b: LoopBuilder, i: Coordinates) -> LoopIROp:
        value = sums.load(b, i)
        if mode == SUM:
            return value
        size = b.call("maximum", counts.load(b, i[:1]), 1)
        return value / b.cast(size, math_dtype)

    def owner(b: LoopBuilder, i: Coordinates) -> LoopIROp:
        return b.cast(positions.load(b, i) - 1, bag_of_each.dtype)

    return (
        low.pointwise(symbolic_shape(fake_bags), fake_bags.dtype, result),
        low.pointwise(symbolic_shape(bag_of_each), bag_of_each.dtype, owner, name=f"{low.node_name}_bags"),
        low.pointwise(symbolic_shape(size_of_each), size_of_each.dtype, counts.loader(size_of_each.dtype)),
        low.pointwise(symbolic_shape(largest), largest.dtype, counts.loader(largest.dtype)),
    )


@register_lowering(aten._embedding_bag_dense_backward.default)
def embedding_bag_dense_backward(
    low: LoweringContext,
    grad: LoweredTensor,
    indices: LoweredTensor,
    bag_of_each: LoweredTensor,
    size_of_each: LoweredTensor,
    largest: LoweredTensor,
    rows: Any,
    scale_by_frequency: bool,
    mode: int,
    per_sample: LoweredTensor | None,
    padding: int = -1,
) -> LoweredTensor:
    """Add each bag's gradient to its looked-up rows, divided by the bag size for a mean."""
    if mode == MAX or scale_by_frequency:
        raise NotLowered(
            LoweringFallback.EMBEDDING_OPTION, "the gradient for mode 'max' or scale_grad_by_freq=True has no lowering"
        )
    _check_nonempty(indices, grad, bag_of_each)
    math_dtype = compute_dtype(grad.dtype)
    table = low.full((as_size(rows), grad.shape[1]), grad.dtype, 0.0)

    def write(b: LoopBuilder, i: Coordinates) -> tuple[Coordinates, LoopIROp]:
        index = indices.load(b, i[:1])
        bag = b.indirect_index(bag_of_each.load(b, i[:1]), grad.shape[0], wraps=False)
        value = b.cast(grad.load(b, (bag, i[1])), math_dtype)
        if per_sample is not None:
            value = value * b.cast(per_sample.load(b, i[:1]), math_dtype)
        if mode == MEAN:
            size = size_of_each.load(b, (bag,))
            value = value / b.cast(b.call("maximum", size, 1), math_dtype)
        return (b.indirect_index(index, table.shape[0], wraps=False), i[1]), _zero_if_padding(b, index, padding, value)

    return scatter_into(low, table, (indices.shape[0], grad.shape[1]), write, is_added=True)


@register_lowering(aten._embedding_bag_per_sample_weights_backward.default)
def embedding_bag_per_sample_weights_backward(
    low: LoweringContext,
    grad: LoweredTensor,
    weight: LoweredTensor,
    indices: LoweredTensor,
    offsets: LoweredTensor,
    bag_of_each: LoweredTensor,
    mode: int,
    padding: int = -1,
) -> LoweredTensor:
    """Return the dot product of each looked-up row and its bag's gradient."""
    _check_nonempty(indices, grad)
    positions = bag_of_each
    if 0 in bag_of_each.shape:
        after = _bag_of_each_index(low, indices, offsets)
        one = torch.int64
        positions = low.pointwise(indices.shape, one, lambda b, i: after.load(b, i) - 1)
    math_dtype = compute_dtype(grad.dtype)
    each = LoweredTensor((indices.shape[0], grad.shape[1]), grad.definition)

    def product(b: LoopBuilder, i: Coordinates) -> LoopIROp:
        index = indices.load(b, i[:1])
        bag = b.indirect_index(positions.load(b, i[:1]), grad.shape[0], wraps=False, is_checked=False)
        row = b.indirect_index(index, weight.shape[0], wraps=False)
        value = b.cast(grad.load(b, (bag, i[1])), math_dtype) * b.cast(weight.load(b, (row, i[1])), math_dtype)
        return _zero_if_padding(b, index, padding, value)

    return reduce(low, "sum", each, (1,), False, grad.dtype, product)
