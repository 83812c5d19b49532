"""The formula of which a softmax is taken: a product of matrices, scaled, with terms added to it and numbers put in its place."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
import torch.fx

from engine.ir.index import is_same, plain, product

aten = torch.ops.aten

VIEWS = (aten.view.default, aten._unsafe_view.default, aten.reshape.default)
COPIES = (aten.clone.default, aten.expand.default, aten.alias.default)
TURNS = (aten.permute.default, aten.transpose.int, aten.unsqueeze.default, aten.squeeze.dim)
"""Views that may do no more than move dimensions of one element."""


@dataclass(frozen=True)
class Added:
    """A term that is added to scores, ``factor`` times."""

    node: torch.fx.Node
    factor: float

    def times(self, number: float) -> Added:
        """The same, all of it times a number."""
        return replace(self, factor=self.factor * number)


@dataclass(frozen=True)
class Filled:
    """A number in the place of scores where a condition is as ``holds``."""

    node: torch.fx.Node
    holds: bool
    fill: float

    def times(self, number: float) -> Filled:
        """The same, all of it times a number."""
        return replace(self, fill=self.fill * number)


@dataclass(eq=False)
class Scores:
    """What a softmax is taken of: a product times ``scale``, then one change after another; ``path`` are the nodes on the way."""

    product: torch.fx.Node
    path: list[torch.fx.Node]
    scale: float = 1.0
    changes: list[tuple[Added | Filled, int]] = field(default_factory=list)
    """Each with the number of dimensions that scores have there."""

    def times(self, number: float) -> Scores:
        """All of it times a number."""
        self.scale *= number
        self.changes = [(change.times(number), rank) for change, rank in self.changes]
        return self

    def changed(self, change: Added | Filled, at: torch.fx.Node) -> Scores:
        """With one more change."""
        self.changes.append((change, at.meta["val"].dim()))
        return self


def node_of(value: Any) -> torch.fx.Node:
    """An argument that is a node."""
    assert isinstance(value, torch.fx.Node)
    return value


def scores_of(node: torch.fx.Node) -> Scores | None:
    """A node's value as a formula over one product of matrices; None where it is none."""
    return _Reader().read(node)


class _Reader:
    def __init__(self) -> None:
        self._others: set[torch.fx.Node] = set()
        """What is known to be no formula: many ways may lead there."""

    def read(self, node: torch.fx.Node) -> Scores | None:
        """A node's formula."""
        found = None if node in self._others else self._read(node)
        if found is None:
            self._others.add(node)
        else:
            found.path.append(node)
        return found

    def _read(self, node: torch.fx.Node) -> Scores | None:
        target = node.target
        if target is aten.bmm.default:
            return Scores(node, [])
        if target is aten.baddbmm.default:
            beta, alpha = (_number_of(node.kwargs.get(name, 1)) for name in ("beta", "alpha"))
            if not alpha or beta is None:
                return None
            found = Scores(node, [], alpha)
            return found.changed(Added(node_of(node.args[0]), beta), node) if beta else found
        if target in COPIES or _is_cast(node) or is_view(node):
            first = node_of(node.args[0])
            return self.read(first) if has_same_matrices(first, node) else None
        if target in (aten.mul.Tensor, aten.mul.Scalar, aten.div.Tensor, aten.div.Scalar):
            return self._times(node)
        if target in (aten.add.Tensor, aten.sub.Tensor):
            return self._plus(node)
        if target in (aten.where.self, aten.masked_fill.Scalar, aten.masked_fill.Tensor):
            return self._filled(node)
        return None

    def _times(self, node: torch.fx.Node) -> Scores | None:
        is_divided = node.target in (aten.div.Tensor, aten.div.Scalar)
        for inner, other in ((node.args[0], node.args[1]), (node.args[1], node.args[0])):
            factor = _number_of(other)
            if factor and (found := self._inside(inner, node)) is not None:
                return found.times(1 / factor if is_divided else factor)
            if is_divided:
                break
        return None

    def _plus(self, node: torch.fx.Node) -> Scores | None:
        if node.kwargs.get("alpha", 1) != 1:
            return None
        sign = -1.0 if node.target is aten.sub.Tensor else 1.0
        for inner, other in ((node.args[0], node.args[1]), (node.args[1], node.args[0])):
            if isinstance(other, torch.fx.Node) and (found := self._inside(inner, node)) is not None:
                return found.changed(Added(other, sign), node)
            if sign < 0:
                break
        return None

    def _filled(self, node: torch.fx.Node) -> Scores | None:
        if node.target is aten.where.self:
            condition, then, otherwise = node.args
        else:
            otherwise, condition, then = node.args
        for inner, fill, holds in ((otherwise, then, True), (then, otherwise, False)):
            number = _number_of(fill)
            if number is not None and (found := self._inside(inner, node)) is not None:
                return found.changed(Filled(node_of(condition), holds, number), node)
        return None

    def _inside(self, inner: Any, node: torch.fx.Node) -> Scores | None:
        """The scores that an elementwise operation changes, which it may not spread."""
        if not isinstance(inner, torch.fx.Node) or not are_same(inner.meta["val"].shape, node.meta["val"].shape):
            return None
        return self.read(inner)


def _number_of(value: Any) -> float | None:
    """A number that the graph holds."""
    if isinstance(value, torch.fx.Node):
        if value.target is aten.full.default and not value.args[0]:
            value = value.args[1]
        elif value.target is aten.scalar_tensor.default:
            value = value.args[0]
        elif value.target in (aten.lift_fresh_copy.default, aten._to_copy.default, aten.clone.default):
            return _number_of(value.args[0])
        elif value.op == "get_attr" and value.graph.owning_module is not None:
            held = getattr(value.graph.owning_module, str(value.target), None)
            if not isinstance(held, torch.Tensor) or isinstance(held, torch._subclasses.FakeTensor):
                return None
            value = None if held.dim() or held.device.type != "cpu" else held.item()
    return float(value) if isinstance(value, (int, float)) and not isinstance(value, bool) else None


def _is_cast(node: torch.fx.Node) -> bool:
    """Whether it changes nothing but how precise a number is."""
    if node.target is not aten._to_copy.default:
        return False
    given, made = node_of(node.args[0]).meta["val"], node.meta["val"]
    return bool(given.dtype.is_floating_point and made.dtype.is_floating_point and given.device == made.device)


def are_same(a: Sequence[Any], b: Sequence[Any]) -> bool:
    """Whether two shapes are equal for every value of their symbols."""
    return len(a) == len(b) and all(is_same(plain(m), plain(n)) for m, n in zip(a, b, strict=True))


def shapes_of(*nodes: torch.fx.Node) -> tuple[Any, ...]:
    """The shapes of nodes' values."""
    return tuple(node.meta["val"].shape for node in nodes)


def _without_ones(shape: Sequence[Any]) -> list[Any]:
    return [n for n in shape if not is_same(plain(n), 1)]


def is_view(node: torch.fx.Node) -> bool:
    """Whether it shows the elements of its argument in their order."""
    if node.target not in TURNS:
        return node.target in VIEWS
    given = node_of(node.args[0]).meta["val"]
    if node.target not in (aten.permute.default, aten.transpose.int):
        return True
    order = list(range(given.dim()))
    if node.target is aten.transpose.int:
        a, b = (int(d) % given.dim() for d in node.args[1:])  # type: ignore[arg-type]
        order[a], order[b] = b, a
    else:
        order = [int(d) % given.dim() for d in node.args[1]]  # type: ignore[union-attr,arg-type]
    wide = [d for d in order if not is_same(plain(given.shape[d]), 1)]
    return wide == sorted(wide)


def has_same_matrices(a: torch.fx.Node, b: torch.fx.Node) -> bool:
    """Whether a view leaves the last two dimensions alone, and only puts the others together or apart."""
    first, second = shapes_of(a, b)
    if _leads(first, second):
        return True
    first, second = _without_ones(first), _without_ones(second)
    return len(first) > 2 and _leads(first, second)


def _leads(first: Sequence[Any], second: Sequence[Any]) -> bool:
    if len(first) < 2 or len(second) < 2 or not are_same(first[-2:], second[-2:]):
        return False
    return is_same(*(product([plain(n) for n in shape[:-2]]) for shape in (first, second)))


def weighted_by(softmax: torch.fx.Node) -> list[torch.fx.Node]:
    """The way from a softmax to the product of its weights with values, which is last; empty where there is none."""
    ways = [[softmax]]
    while ways:
        way = ways.pop()
        for user in way[-1].users:
            if user.target is aten.bmm.default and user.args[0] is way[-1] is not user.args[1]:
                return [*way[1:], user]
            if (user.target in COPIES or _is_cast(user) or is_view(user)) and has_same_matrices(softmax, user):
                ways.append([*way, user])
    return []
