"""Value range analysis: bounds of node values, as far as the graph shows them."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
import torch.fx

from engine.ir.node_values import tensor_meta

aten = torch.ops.aten
ValueRange = tuple[float, float]
UNBOUNDED: ValueRange = (-math.inf, math.inf)
EMBEDDING_RANGE: ValueRange = (-1e4, 1e4)
"""Assumed range of embedding rows: weights of a working model are small numbers."""
RANGE_PRESERVING_OPS = (
    aten.expand.default, aten.view.default, aten._unsafe_view.default, aten.reshape.default, aten.unsqueeze.default, aten.squeeze.dim,
    aten.permute.default, aten.transpose.int, aten.slice.Tensor, aten.select.int, aten.clone.default, aten.alias.default, aten.t.default,
)  # fmt: skip
ZERO_FILLING_OPS = (aten.tril.default, aten.triu.default)
EMBEDDING_OPS = (aten.embedding.default,)


class ValueRanges:
    """Value ranges of nodes, each computed once."""

    def __init__(self) -> None:
        self._known: dict[torch.fx.Node, ValueRange] = {}

    def range_of(self, value: Any) -> ValueRange:
        """Return ``(lowest, highest)`` of a value; infinite where unknown."""
        if isinstance(value, (bool, int, float)):
            return (float(value), float(value))
        if tensor_meta(value) is None:
            return UNBOUNDED
        if value not in self._known:
            value_range = self._compute(value)
            self._known[value] = UNBOUNDED if any(map(math.isnan, value_range)) else value_range
        return self._known[value]

    def is_embedding_lookup(self, value: Any) -> bool:
        """Return True if the value consists of embedding rows, in any order and dtype."""
        while tensor_meta(value) is not None and (
            value.target in RANGE_PRESERVING_OPS or value.target is aten._to_copy.default
        ):
            value = value.args[0]
        return tensor_meta(value) is not None and value.target in EMBEDDING_OPS

    def _compute(self, node: torch.fx.Node) -> ValueRange:
        meta = tensor_meta(node)
        if meta is not None and meta.dtype is torch.bool:
            return (0.0, 1.0)
        target = node.target
        if target in RANGE_PRESERVING_OPS or target is aten._to_copy.default:
            return self.range_of(node.args[0])
        if target in EMBEDDING_OPS:
            return EMBEDDING_RANGE
        if target in ZERO_FILLING_OPS:
            return _union(self.range_of(node.args[0]), (0.0, 0.0))
        if target in (aten.full.default, aten.full_like.default):
            return self.range_of(node.args[1])
        if target in (aten.where.self, aten.masked_fill.Scalar, aten.masked_fill.Tensor):
            a, b = node.args[1:] if target is aten.where.self else (node.args[0], node.args[2])
            return _union(self.range_of(a), self.range_of(b))
        rule = RANGE_RULES.get(target)
        if rule is None or node.kwargs.get("alpha", 1) != 1:
            return UNBOUNDED
        return rule(*map(self.range_of, node.args[:2]))


def _union(a: ValueRange, b: ValueRange) -> ValueRange:
    return (min(a[0], b[0]), max(a[1], b[1]))


def _add_ranges(a: ValueRange, b: ValueRange) -> ValueRange:
    return (a[0] + b[0], a[1] + b[1])


def _sub_ranges(a: ValueRange, b: ValueRange) -> ValueRange:
    return (a[0] - b[1], a[1] - b[0])


def _mul_ranges(a: ValueRange, b: ValueRange) -> ValueRange:
    products = [x * y for x in a for y in b]
    return UNBOUNDED if any(map(math.isnan, products)) else (min(products), max(products))


RANGE_RULES: dict[Any, Callable[[ValueRange, ValueRange], ValueRange]] = {
    aten.add.Tensor: _add_ranges,
    aten.sub.Tensor: _sub_ranges,
    aten.rsub.Scalar: lambda a, b: _sub_ranges(b, a),
    aten.mul.Tensor: _mul_ranges,
}
