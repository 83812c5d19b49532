"""Matches the scores under a softmax: a scaled matmul, added terms, masked fills."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
import torch.fx

from engine.ir.loop_ir.index_expr import as_size, product, sizes_equal
from engine.ir.node_values import constant_number, tensor_meta

aten = torch.ops.aten

RESHAPE_OPS = (aten.view.default, aten._unsafe_view.default, aten.reshape.default)
COPY_OPS = (aten.clone.default, aten.expand.default, aten.alias.default)
DIM_MOVING_OPS = (aten.permute.default, aten.transpose.int, aten.unsqueeze.default, aten.squeeze.dim)
"""Ops that move dimensions. They match if only dimensions of size 1 change their order."""


@dataclass(frozen=True)
class AddTerm:
    """A term that is added to the scores, times ``factor``."""

    node: torch.fx.Node
    factor: float

    def scaled_by(self, number: float) -> AddTerm:
        """Return this term scaled by a number."""
        return replace(self, factor=self.factor * number)


@dataclass(frozen=True)
class MaskedFillTerm:
    """A constant that replaces scores where a condition equals ``fills_where``."""

    node: torch.fx.Node
    fills_where: bool
    fill: float

    def scaled_by(self, number: float) -> MaskedFillTerm:
        """Return this term with its constant scaled by a number."""
        return replace(self, fill=self.fill * number)


@dataclass(eq=False)
class ScoreExpr:
    """Input of a softmax as a formula over one matmul.

    It is the matmul ``product`` times ``scale``, then changed by each of ``terms``. ``path_nodes`` are the nodes from
    the matmul to the softmax.
    """

    product: torch.fx.Node
    path_nodes: list[torch.fx.Node]
    scale: float = 1.0
    terms: list[tuple[AddTerm | MaskedFillTerm, int]] = field(default_factory=list)
    """Each term with the rank that the scores have at that point."""

    def scaled_by(self, number: float) -> ScoreExpr:
        """Scale the whole formula by a number, in place."""
        self.scale *= number
        self.terms = [(change.scaled_by(number), rank) for change, rank in self.terms]
        return self

    def with_term(self, change: AddTerm | MaskedFillTerm, at: torch.fx.Node) -> ScoreExpr:
        """Append a term, in place."""
        self.terms.append((change, at.meta["val"].dim()))
        return self


def as_node(value: Any) -> torch.fx.Node:
    """Return an argument that must be a node."""
    assert isinstance(value, torch.fx.Node)
    return value


def match_scores(node: torch.fx.Node) -> ScoreExpr | None:
    """Match a node's value as a formula over one matmul; return None without a match."""
    return _ScoreMatcher().match(node)


class _ScoreMatcher:
    def __init__(self) -> None:
        self._unmatched: set[torch.fx.Node] = set()
        """Nodes that are known not to match. Several paths may lead to one node."""

    def match(self, node: torch.fx.Node) -> ScoreExpr | None:
        """Return the formula of a node, None without a match."""
        scores = None if node in self._unmatched else self._match(node)
        if scores is None:
            self._unmatched.add(node)
        else:
            scores.path_nodes.append(node)
        return scores

    def _match(self, node: torch.fx.Node) -> ScoreExpr | None:
        target = node.target
        if target is aten.bmm.default:
            return ScoreExpr(node, [])
        if target is aten.baddbmm.default:
            beta, alpha = (_constant_value(node.kwargs.get(name, 1)) for name in ("beta", "alpha"))
            if not alpha or beta is None:
                return None
            scores = ScoreExpr(node, [], alpha)
            return scores.with_term(AddTerm(as_node(node.args[0]), beta), node) if beta else scores
        if target in COPY_OPS or _is_float_cast(node) or preserves_element_order(node):
            first = as_node(node.args[0])
            return self.match(first) if keeps_last_two_dims(first, node) else None
        if target in (aten.mul.Tensor, aten.mul.Scalar, aten.div.Tensor, aten.div.Scalar):
            return self._match_scale(node)
        if target in (aten.add.Tensor, aten.sub.Tensor):
            return self._match_add(node)
        if target in (aten.where.self, aten.masked_fill.Scalar, aten.masked_fill.Tensor):
            return self._match_masked_fill(node)
        return None

    def _match_scale(self, node: torch.fx.Node) -> ScoreExpr | None:
        is_divided = node.target in (aten.div.Tensor, aten.div.Scalar)
        for inner, other in ((node.args[0], node.args[1]), (node.args[1], node.args[0])):
            factor = _constant_value(other)
            if factor and (scores := self._match_operand(inner, node)) is not None:
                return scores.scaled_by(1 / factor if is_divided else factor)
            if is_divided:
                break
        return None

    def _match_add(self, node: torch.fx.Node) -> ScoreExpr | None:
        if node.kwargs.get("alpha", 1) != 1:
            return None
        sign = -1.0 if node.target is aten.sub.Tensor else 1.0
        for inner, other in ((node.args[0], node.args[1]), (node.args[1], node.args[0])):
            if tensor_meta(other) is not None and (scores := self._match_operand(inner, node)) is not None:
                return scores.with_term(AddTerm(as_node(other), sign), node)
            if sign < 0:
                break
        return None

    def _match_masked_fill(self, node: torch.fx.Node) -> ScoreExpr | None:
        if node.target is aten.where.self:
            condition, then, otherwise = node.args
        else:
            otherwise, condition, then = node.args
        for inner, fill, holds in ((otherwise, then, True), (then, otherwise, False)):
            number = _constant_value(fill)
            if number is not None and (scores := self._match_operand(inner, node)) is not None:
                return scores.with_term(MaskedFillTerm(as_node(condition), holds, number), node)
        return None

    def _match_operand(self, inner: Any, node: torch.fx.Node) -> ScoreExpr | None:
        """Match the operand of an elementwise op that changes scores without broadcasting them."""
        meta = tensor_meta(inner)
        return self.match(inner) if meta is not None and have_same_shape(meta.shape, node.meta["val"].shape) else None


def _constant_value(value: Any) -> float | None:
    """Return the number that a value is known to be in the graph, None if unknown."""
    if isinstance(value, torch.fx.Node):
        if value.target is aten.full.default and not value.args[0]:
            value = value.args[1]
        elif value.target is aten.scalar_tensor.default:
            value = value.args[0]
        elif value.target in (aten.lift_fresh_copy.default, aten._to_copy.default, aten.clone.default):
            return _constant_value(value.args[0])
        elif value.op == "get_attr" and value.graph.owning_module is not None:
            constant = getattr(value.graph.owning_module, str(value.target), None)
            value = None if constant is None or constant.dim() else constant_number(constant)
    return float(value) if isinstance(value, (int, float)) and not isinstance(value, bool) else None


def _is_float_cast(node: torch.fx.Node) -> bool:
    """Return True if the node only changes the floating-point precision."""
    if node.target is not aten._to_copy.default:
        return False
    operand, result = as_node(node.args[0]).meta["val"], node.meta["val"]
    return bool(operand.dtype.is_floating_point and result.dtype.is_floating_point and operand.device == result.device)


def have_same_shape(a: Sequence[Any], b: Sequence[Any]) -> bool:
    """Return True if two shapes are equal for every value of their symbols."""
    return len(a) == len(b) and all(sizes_equal(as_size(m), as_size(n)) for m, n in zip(a, b, strict=True))


def shapes_of(*nodes: torch.fx.Node) -> tuple[Any, ...]:
    """Return the shapes of the nodes' values."""
    return tuple(node.meta["val"].shape for node in nodes)


def _without_ones(shape: Sequence[Any]) -> list[Any]:
    return [n for n in shape if not sizes_equal(as_size(n), 1)]


def preserves_element_order(node: torch.fx.Node) -> bool:
    """Return True if the node is a view with the elements of its argument in order."""
    if node.target not in DIM_MOVING_OPS:
        return node.target in RESHAPE_OPS
    operand = as_node(node.args[0]).meta["val"]
    if node.target not in (aten.permute.default, aten.transpose.int):
        return True
    order = list(range(operand.dim()))
    if node.target is aten.transpose.int:
        a, b = (int(d) % operand.dim() for d in node.args[1:])  # type: ignore[arg-type]
        order[a], order[b] = b, a
    else:
        order = [int(d) % operand.dim() for d in node.args[1]]  # type: ignore[union-attr,arg-type]
    wide = [d for d in order if not sizes_equal(as_size(operand.shape[d]), 1)]
    return wide == sorted(wide)


def keeps_last_two_dims(a: torch.fx.Node, b: torch.fx.Node) -> bool:
    """Return True if a view preserves the last two dimensions and only reshapes the others."""
    first, second = shapes_of(a, b)
    if _has_same_last_two_dims(first, second):
        return True
    first, second = _without_ones(first), _without_ones(second)
    return len(first) > 2 and _has_same_last_two_dims(first, second)


def _has_same_last_two_dims(first: Sequence[Any], second: Sequence[Any]) -> bool:
    if len(first) < 2 or len(second) < 2 or not have_same_shape(first[-2:], second[-2:]):
        return False
    return sizes_equal(*(product([as_size(n) for n in shape[:-2]]) for shape in (first, second)))


def path_to_value_matmul(softmax: torch.fx.Node) -> list[torch.fx.Node]:
    """Return the path from a softmax to the matmul of weights and values, which is last.

    The path is empty if there is none.
    """
    ways = [[softmax]]
    while ways:
        path = ways.pop()
        for user in path[-1].users:
            if user.target is aten.bmm.default and user.args[0] is path[-1] is not user.args[1]:
                return [*path[1:], user]
            if (
                user.target in COPY_OPS or _is_float_cast(user) or preserves_element_order(user)
            ) and keeps_last_two_dims(softmax, user):
                ways.append([*path, user])
    return []
