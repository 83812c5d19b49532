"""Attention that is written out, as products around a softmax, becomes the one call that keeps no scores in memory."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
import torch.fx
from torch._guards import detect_fake_mode

from engine.graph.composites import operator
from engine.ir.graph import origin_of, set_origin
from engine.ir.index import plain, product
from engine.lowering.limits import Limits
from engine.lowering.scores import (
    COPIES,
    Added,
    Filled,
    Scores,
    are_same,
    has_same_matrices,
    is_view,
    node_of,
    scores_of,
    shapes_of,
    weighted_by,
)
from engine.records.lowering import FusionDecision

aten = torch.ops.aten

SIZES = (aten.sym_size.int, aten.sym_stride.int)
HALVES = (torch.float16, torch.bfloat16)
TYPES = (torch.float32, *HALVES)
LINE = 16
"""Bytes that a head's width is to be a multiple of: for others libraries have no such kernel."""
WIDEST = 256
"""Width of a head beyond which libraries have no such kernel."""
LOWEST_SCORE = -1e30
"""No score of a key that is seen is below this: lower numbers, in its place, leave nothing of a key."""
NOTHING = float("-inf")
"""What leaves nothing of a key."""


class _Apart(Exception):
    """Why attention stays as it is written; the message is the recorded reason."""


def attentions(module: torch.fx.GraphModule) -> tuple[FusionDecision, ...]:
    """Put calls of attention in the place of what computes the same; the module is changed. What was decided, and why.

    The idea is that of ``torch._inductor.fx_passes.fuse_attention``, which has a list of patterns; here scores are read as a formula.
    """
    work = _Work(module.graph)
    for node in list(module.graph.nodes):
        if node.target is aten._softmax.default:
            work.consider(node)
    if work.decisions:
        module.graph.eliminate_dead_code()
        module.recompile()
    return tuple(work.decisions)


class _Work:
    def __init__(self, graph: torch.fx.Graph) -> None:
        self.graph = graph
        self.decisions: list[FusionDecision] = []
        self.limits = Limits()
        self._masks: dict[Any, torch.fx.Node] = {}

    def consider(self, softmax: torch.fx.Node) -> None:
        """Exchange the attention around one softmax, if it is one and what it gives is the same."""
        given = softmax.args[0]
        scores = scores_of(given) if isinstance(given, torch.fx.Node) else None
        weighted = weighted_by(softmax)
        if scores is None or not weighted:
            return
        first, second = (origin_of(n).nodes for n in (scores.product, weighted[-1]))
        count = product([plain(n) for n in softmax.meta["val"].shape])
        moved = 4 * count * scores.product.meta["val"].dtype.itemsize if isinstance(count, int) else None
        try:
            self._exchange(softmax, scores, weighted)
        except _Apart as reason:
            self.decisions.append(FusionDecision(first, second, False, str(reason), bytes_moved=moved))
        else:
            why = "One call of attention computes both products and the softmax between them: scores never go through memory."
            self.decisions.append(FusionDecision(first, second, True, why, bytes_saved=moved))

    def _exchange(self, softmax: torch.fx.Node, scores: Scores, weighted: list[torch.fx.Node]) -> None:
        _check_unread([*scores.path, softmax, *weighted[:-1]], softmax)
        last, rank = weighted[-1], softmax.meta["val"].dim()
        if softmax.args[1] not in (-1, rank - 1):
            raise _Apart("The softmax is not over the keys.")
        query, keys, value = (node_of(t) for t in (*scores.product.args[-2:], last.args[1]))
        if rank == 4:
            heads = softmax.meta["val"].shape[:2]
            query, keys, value = (self._by_heads(t, heads) for t in (query, keys, value))
            last = _seen_by_heads(last, (*heads, *last.meta["val"].shape[1:]))
        lead = query.meta["val"].shape[:-2]
        if len(lead) != rank - 2 or not all(are_same(t.meta["val"].shape[:-2], lead) for t in (keys, value, softmax)):
            raise _Apart("Queries, keys and values have different batches.")
        if any(at != rank for _, at in scores.changes):
            raise _Apart("What it adds to scores is not seen by heads as its softmax is.")
        self._check_kind(query, value, scores)
        mask = self._mask(scores, query.meta["val"].dtype, softmax)
        for node in (*scores.path, softmax, *weighted[:-1]):
            _measured_elsewhere(node, scores.product, (query, keys))
        self._put(last, (query, keys, value), mask, scores.scale)

    def _by_heads(self, operand: torch.fx.Node, heads: Sequence[Any]) -> torch.fx.Node:
        """A product's operand with heads in a dimension of their own: what it is a view of, or else a view of it."""
        found = operand
        while found.target in COPIES or is_view(found):
            inner = node_of(found.args[0])
            if not has_same_matrices(inner, found):
                break
            if found.meta["val"].dim() == 4 and (is_view(found) or not are_same(*shapes_of(inner, found))):
                break
            found = inner
        if found.meta["val"].dim() == 4:
            return found
        shape = (*heads, *operand.meta["val"].shape[-2:])
        if not all(isinstance(n, int) for n in shape):
            return operand
        with self.graph.inserting_after(operand), _mode_of(operand):
            return self._call(operand, aten.view.default, (operand, list(shape)))

    def _check_kind(self, query: torch.fx.Node, value: torch.fx.Node, scores: Scores) -> None:
        """Raise _Apart where a call would give something else, or nothing would be won by it."""
        dtype = query.meta["val"].dtype
        widths = [t.meta["val"].shape[-1] for t in (query, value)]
        if dtype not in TYPES:
            raise _Apart(f"Libraries have no attention of {str(dtype).removeprefix('torch.')}.")
        if not all(isinstance(n, int) and 0 < n <= WIDEST and n * dtype.itemsize % LINE == 0 for n in widths):
            raise _Apart(f"Libraries have no attention of heads {' and '.join(dict.fromkeys(map(str, widths)))} wide.")
        if not 0 < scores.scale < math.inf:
            raise _Apart("Its scores are not scaled by a positive number.")
        for change, _ in scores.changes:
            if isinstance(change, Filled) and not change.fill < LOWEST_SCORE:
                raise _Apart(f"It fills scores with {change.fill:g}, and scores may be as low.")
            if isinstance(change, Added) and dtype in HALVES and not self.limits.is_looked_up(change.node):
                raise _Apart("What it adds to 16-bit scores may round them away, which attention in 32 bits would not.")

    def _put(
        self, last: torch.fx.Node, given: tuple[torch.fx.Node, ...], mask: torch.fx.Node | None, scale: float
    ) -> None:
        with self.graph.inserting_before(last), _mode_of(last):
            query, keys, value = given
            given = (query, self._call(last, aten.transpose.int, (keys, -2, -1)), value)
            by_heads = query.meta["val"].dim() == 4
            if not by_heads:  # heads are all that there is
                given = tuple(self._call(last, aten.unsqueeze.default, (t, 0)) for t in given)
            found = self._call(last, operator("attention"), (*given, mask), {"scale": scale})
            # Libraries write heads side by side; whoever is handed the view gets what lies as eager's result.
            found.meta["val"] = found.meta["val"].transpose(1, 2).contiguous().transpose(1, 2)
            as_it_is = (aten.permute.default, (found, [0, 1, 2, 3])) if by_heads else (aten.squeeze.dim, (found, 0))
            seen = self._call(last, *as_it_is)
        seen.meta["val"] = last.meta["val"]
        last.replace_all_uses_with(seen)
        self.graph.erase_node(last)
        if by_heads:
            found.name = last.name  # by which its values are compared
            self._drop_copies(seen)

    def _drop_copies(self, seen: torch.fx.Node) -> None:
        """Heads lie side by side already: what copies them there is not needed."""
        for turned in list(seen.users):
            if turned.target not in (aten.transpose.int, aten.permute.default) or len(turned.users) != 1:
                continue
            (copy,) = turned.users
            shown = copy.meta["val"]
            is_row_major = isinstance(shown, torch.Tensor) and shown.is_contiguous()
            if copy.target is aten.clone.default and is_row_major and _swaps_heads(turned):
                copy.replace_all_uses_with(turned)
                turned.meta["val"] = copy.meta["val"]
                self.graph.erase_node(copy)

    def _mask(self, scores: Scores, dtype: torch.dtype, softmax: torch.fx.Node) -> torch.fx.Node | None:
        """What is added to the scores; None where nothing is. Attentions that share a mask share what is made of it."""
        changes = tuple(change for change, _ in scores.changes)
        if changes and (changes, dtype) not in self._masks:
            with self.graph.inserting_before(softmax), _mode_of(softmax):
                self._masks[changes, dtype] = self._made_mask(changes, dtype, softmax)
        return self._masks[changes, dtype] if changes else None

    def _made_mask(self, changes: Sequence[Added | Filled], dtype: torch.dtype, at: torch.fx.Node) -> torch.fx.Node:
        made: torch.fx.Node | None = None
        lowest = 0.0
        for change in changes:
            if isinstance(change, Added):
                made = self._plus(made, change, dtype, at)
                lowest += min(bound * change.factor for bound in self.limits.of(change.node))
            else:
                rest = made if made is not None else self._number(at, 0.0, dtype)
                # As low as numbers get, so that a row that sees no key weighs all keys alike, whatever its scores.
                fill = NOTHING if change.fill == NOTHING else torch.finfo(dtype).min
                number = self._number(at, fill, dtype)
                chosen = (number, rest) if change.holds else (rest, number)
                made = self._call(at, aten.where.self, (change.node, *chosen))
                lowest = min(lowest, fill)
        assert made is not None
        if not lowest >= torch.finfo(dtype).min:
            made = self._told_blind(made, dtype, at)
        return made if made.meta["val"].dim() > 1 else self._call(at, aten.unsqueeze.default, (made, 0))

    def _plus(self, made: torch.fx.Node | None, change: Added, dtype: torch.dtype, at: torch.fx.Node) -> torch.fx.Node:
        part = change.node
        if change.factor != 1.0:
            part = self._call(at, aten.mul.Tensor, (part, change.factor))
        if part.meta["val"].dtype != dtype:
            part = self._call(at, aten._to_copy.default, (part,), {"dtype": dtype})
        return part if made is None else self._call(at, aten.add.Tensor, (made, part))

    def _told_blind(self, mask: torch.fx.Node, dtype: torch.dtype, at: torch.fx.Node) -> torch.fx.Node:
        """The mask, its rows that see no key at all made NaN, as their softmax is: libraries do not agree on those."""
        most = self._call(at, aten.amax.default, (mask, [-1], True))
        is_blind = self._call(at, aten.eq.Scalar, (most, NOTHING))
        return self._call(at, aten.where.self, (is_blind, self._number(at, math.nan, dtype), mask))

    def _number(self, at: torch.fx.Node, value: float, dtype: torch.dtype) -> torch.fx.Node:
        return self._call(at, aten.full.default, ([], value), {"dtype": dtype, "device": at.meta["val"].device})

    def _call(
        self, origin: torch.fx.Node, target: Any, args: tuple[Any, ...], kwargs: dict[str, Any] | None = None
    ) -> torch.fx.Node:
        made = self.graph.create_node("call_function", target, args, kwargs or {})
        values, named = torch.fx.map_arg((args, dict(kwargs or {})), lambda n: n.meta["val"])
        made.meta["val"] = target(*values, **named)
        set_origin(made, origin_of(origin))
        return made


def _swaps_heads(turned: torch.fx.Node) -> bool:
    """Whether a view exchanges the second of four dimensions with the third."""
    if turned.target is aten.permute.default:
        return list(turned.args[1]) == [0, 2, 1, 3]  # type: ignore[arg-type]
    return {int(d) % 4 for d in turned.args[1:]} == {1, 2}  # type: ignore[arg-type]


def _mode_of(node: torch.fx.Node) -> Any:
    mode = detect_fake_mode([node.meta["val"]])
    if mode is None:
        raise _Apart("The sizes of its tensors are not known.")
    return mode


def _readers(node: torch.fx.Node) -> list[torch.fx.Node]:
    """Whoever reads a node's elements."""
    return [user for user in node.users if user.target not in SIZES]


def _measured_elsewhere(node: torch.fx.Node, scores: torch.fx.Node, given: tuple[torch.fx.Node, torch.fx.Node]) -> None:
    """Ask the sizes of what is no longer there of what it was made of."""
    rank = node.meta["val"].dim()
    rows, columns = given if rank == 4 else (node_of(a) for a in scores.args[-2:])
    for user in [u for u in node.users if u.target in SIZES]:
        dim = int(user.args[1]) % rank  # type: ignore[arg-type]
        user.args = (columns if dim == rank - 1 else rows, dim)


def _seen_by_heads(weighted: torch.fx.Node, shape: Sequence[Any]) -> torch.fx.Node:
    """The one view of a product that has heads in a dimension of their own."""
    found = weighted
    while len(users := _readers(found)) == 1 and is_view(users[0]) and has_same_matrices(found, users[0]):
        found = users[0]
        if are_same(found.meta["val"].shape, shape):
            return found
    raise _Apart("Its result is not seen by heads.")


def _check_unread(path: Sequence[torch.fx.Node], softmax: torch.fx.Node) -> None:
    """Raise _Apart where something but the attention itself reads what would no longer be there."""
    for position, node in enumerate(path):
        if len(_readers(node)) > 1:
            word = "weights" if position >= list(path).index(softmax) else "scores"
            is_kept = any(user.op == "output" for user in _readers(node))
            why = "returned, or saved for the backward" if is_kept else "read elsewhere too"
            raise _Apart(f"Its {word} are {why}: they have to be in memory.")
