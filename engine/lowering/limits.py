"""Between which numbers a node's value lies, as far as the graph itself tells."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
import torch.fx

aten = torch.ops.aten
Range = tuple[float, float]
ANY: Range = (-math.inf, math.inf)
LOOKED_UP: Range = (-1e4, 1e4)
"""Rows of a table are weights, which are small numbers where a model computes anything at all."""
SAME = (
    aten.expand.default, aten.view.default, aten._unsafe_view.default, aten.reshape.default, aten.unsqueeze.default, aten.squeeze.dim,
    aten.permute.default, aten.transpose.int, aten.slice.Tensor, aten.select.int, aten.clone.default, aten.alias.default, aten.t.default,
)  # fmt: skip
WITH_ZERO = (aten.tril.default, aten.triu.default)
LOOK_UPS = (aten.embedding.default,)


class Limits:
    """Ranges of nodes, each found once."""

    def __init__(self) -> None:
        self._known: dict[torch.fx.Node, Range] = {}

    def of(self, value: Any) -> Range:
        """``(lowest, highest)``; infinite where nothing tells."""
        if isinstance(value, (bool, int, float)):
            return (float(value), float(value))
        if not isinstance(value, torch.fx.Node):
            return ANY
        if value not in self._known:
            found = self._found(value)
            self._known[value] = ANY if any(map(math.isnan, found)) else found
        return self._known[value]

    def is_looked_up(self, value: Any) -> bool:
        """Whether it is rows of a table, lying in whatever order."""
        while isinstance(value, torch.fx.Node) and (value.target in SAME or value.target is aten._to_copy.default):
            value = value.args[0]
        return isinstance(value, torch.fx.Node) and value.target in LOOK_UPS

    def _found(self, node: torch.fx.Node) -> Range:
        made = node.meta.get("val")
        if isinstance(made, torch.Tensor) and made.dtype is torch.bool:
            return (0.0, 1.0)
        target = node.target
        if target in SAME or target is aten._to_copy.default:
            return self.of(node.args[0])
        if target in LOOK_UPS:
            return LOOKED_UP
        if target in WITH_ZERO:
            return _union(self.of(node.args[0]), (0.0, 0.0))
        if target in (aten.full.default, aten.full_like.default):
            return self.of(node.args[1])
        if target in (aten.where.self, aten.masked_fill.Scalar, aten.masked_fill.Tensor):
            a, b = node.args[1:] if target is aten.where.self else (node.args[0], node.args[2])
            return _union(self.of(a), self.of(b))
        rule = RULES.get(target)
        if rule is None or node.kwargs.get("alpha", 1) != 1:
            return ANY
        return rule(*map(self.of, node.args[:2]))


def _union(a: Range, b: Range) -> Range:
    return (min(a[0], b[0]), max(a[1], b[1]))


def _plus(a: Range, b: Range) -> Range:
    return (a[0] + b[0], a[1] + b[1])


def _minus(a: Range, b: Range) -> Range:
    return (a[0] - b[1], a[1] - b[0])


def _times(a: Range, b: Range) -> Range:
    products = [x * y for x in a for y in b]
    return ANY if any(map(math.isnan, products)) else (min(products), max(products))


RULES: dict[Any, Callable[[Range, Range], Range]] = {
    aten.add.Tensor: _plus,
    aten.sub.Tensor: _minus,
    aten.rsub.Scalar: lambda a, b: _minus(b, a),
    aten.mul.Tensor: _times,
}
