"""Layouts in which cuDNN's convolutions read their operands.

cuDNN computes in channels last if the input or the weight is so. ATen then copies each other operand to this layout.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, cast

import torch
import torch.fx

from engine.ir.node_values import tensor_meta
from engine.ir.static_sizes import static_sizes
from engine.lowering.pad_strides import PERMUTATIONS, RESHAPES

aten = torch.ops.aten

Order = tuple[int, ...]
"""Dimensions by descending stride, without those of size 1."""

INPUT_POSITIONS: dict[Any, int] = {aten.convolution.default: 0, aten.convolution_backward.default: 1}
"""Position of the input of a convolution; the weight follows."""
CHANNELS_LAST = {4: torch.channels_last, 5: torch.channels_last_3d}
"""Memory format by the number of dimensions."""


def order_read_by_convolution(node: torch.fx.Node, user: torch.fx.Node) -> Order | None:
    """Return the order in which a convolution reads its gradient or its input.

    None if it prefers none, or if another order would change its results.
    The layout of its results depends on the input and the weight: an input may change only if the weight decides.
    """
    position = INPUT_POSITIONS.get(user.target)
    value = tensor_meta(node)
    if position is None or value is None or value.dim() not in CHANNELS_LAST or value.dtype == torch.float64:
        return None
    operands = cast("tuple[torch.fx.Node, ...]", user.args[: position + 2])
    if node is user.args[position + 1] or operands.count(node) > 1:
        return None
    if not any(_is_channels_last(n) for n in operands[position:] if n is not node):
        return None
    return channels_last_order(value.shape)


def channels_last_order(shape: Sequence[int]) -> Order:
    """Return the order of an image: batch, height, width, channels."""
    return tuple(d for d in (0, *range(2, len(shape)), 1) if shape[d] != 1)


def order_of_base(view: torch.fx.Node, order: Order) -> Order | None:
    """Return the order of a view's base that gives the view this order; None without one."""
    base, value = tensor_meta(view.all_input_nodes[0]), tensor_meta(view)
    if base is None or value is None or static_sizes((*base.shape, *value.shape)) is None:
        return None
    if view.target in PERMUTATIONS:
        positions = torch.empty_strided([1] * base.dim(), tuple(range(base.dim())), device="meta")
        dims = view.target(positions, *view.args[1:]).stride()
        return tuple(dims[d] for d in order)
    return _order_before_reshape(base.shape, value.shape, order) if view.target in RESHAPES else None


def _order_before_reshape(base: Sequence[int], shape: Sequence[int], order: Order) -> Order | None:
    """Return the order of a base that is viewed in another shape.

    Dimensions that are split or merged must be adjacent in memory, in the order of the shape.

    >>> _order_before_reshape((2, 8, 2, 2, 4, 4), (2, 32, 4, 4), (0, 2, 3, 1))
    (0, 4, 5, 1, 2, 3)
    """
    replaced = {theirs: ours for ours, theirs in _dimensions_with_equal_sizes(base, shape)}
    result: list[int] = []
    rest = list(order)
    while rest:
        theirs = next(group for group in replaced if rest[0] in group)
        if tuple(rest[: len(theirs)]) != theirs:
            return None
        result += replaced[theirs]
        del rest[: len(theirs)]
    return tuple(result)


def _dimensions_with_equal_sizes(first: Sequence[int], second: Sequence[int]) -> list[tuple[Order, Order]]:
    """Return the shortest groups of dimensions that have as many elements in both shapes."""
    ours = [d for d, size in enumerate(first) if size != 1]
    theirs = [d for d, size in enumerate(second) if size != 1]
    groups: list[tuple[Order, Order]] = []
    while ours:
        left, right = [ours.pop(0)], [theirs.pop(0)]
        while (a := math.prod(first[d] for d in left)) != (b := math.prod(second[d] for d in right)):
            if a < b:
                left.append(ours.pop(0))
            else:
                right.append(theirs.pop(0))
        groups.append((tuple(left), tuple(right)))
    return groups


def _is_channels_last(node: torch.fx.Node) -> bool:
    """Return True if a value is in channels last and in no other layout."""
    value = tensor_meta(node)
    if value is None or value.dim() not in CHANNELS_LAST or static_sizes((*value.shape, *value.stride())) is None:
        return False
    return value.is_contiguous(memory_format=CHANNELS_LAST[value.dim()]) and not value.is_contiguous()
