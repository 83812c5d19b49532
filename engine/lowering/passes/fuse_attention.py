"""Pass: replaces hand-written attention by one attention call.

The call computes both matmuls and the softmax between them, and does not store the scores.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
import torch.fx

from engine.graph.device_dependent_composites import composite_op
from engine.graph.passes.eliminate_dead_code import eliminate_dead_code
from engine.ir.loop_ir.index_expr import as_size, static_product
from engine.ir.node_metadata import provenance_of, set_provenance
from engine.ir.node_values import tensor_meta
from engine.ir.static_sizes import static_sizes
from engine.lowering.passes.match_scores import (
    COPY_OPS,
    AddTerm,
    MaskedFillTerm,
    ScoreExpr,
    as_node,
    have_same_shape,
    keeps_last_two_dims,
    match_scores,
    path_to_value_matmul,
    preserves_element_order,
    shapes_of,
)
from engine.lowering.value_ranges import ValueRanges
from engine.records.lowering import FusionDecision
from engine.torch_private.fake_tensors import detect_fake_mode

aten = torch.ops.aten

SIZE_OPS = (aten.sym_size.int, aten.sym_stride.int)
HALF_DTYPES = (torch.float16, torch.bfloat16)
ATTENTION_DTYPES = (torch.float32, *HALF_DTYPES)
ALIGNMENT_BYTES = 16
"""Head dims must be a multiple of this many bytes: libraries have no kernel for others."""
MAX_HEAD_DIM = 256
"""Largest head dim for which libraries have a kernel."""
MIN_SCORE = -1e30
"""Visible scores are assumed to be above this. A lower fill removes a key completely."""
NEG_INF = float("-inf")
"""Fill that removes a key completely."""


def fuse_attention(module: torch.fx.GraphModule) -> tuple[FusionDecision, ...]:
    """Replace attention by attention calls, in place; return the decisions with their reasons.

    The idea comes from ``torch._inductor.fx_passes.fuse_attention``, which has a list of patterns. Here the scores
    are matched as a formula.
    """
    work = _AttentionFuser(module.graph)
    for node in list(module.graph.nodes):
        if node.target is aten._softmax.default:
            work.try_fuse(node)
    if work.decisions:
        eliminate_dead_code(module)
        module.recompile()
    return tuple(work.decisions)


class _AttentionFuser:
    def __init__(self, graph: torch.fx.Graph) -> None:
        self.graph = graph
        self.decisions: list[FusionDecision] = []
        self.value_ranges = ValueRanges()
        self._masks: dict[Any, torch.fx.Node] = {}

    def try_fuse(self, softmax: torch.fx.Node) -> None:
        """Fuse the attention around a softmax if one call computes the same result."""
        source = softmax.args[0]
        scores = match_scores(as_node(source))
        weighted = path_to_value_matmul(softmax)
        if scores is None or not weighted:
            return
        first, second = (provenance_of(n).nodes for n in (scores.product, weighted[-1]))
        sizes = [as_size(n) for n in softmax.meta["val"].shape]
        moved = static_product((4, *sizes, scores.product.meta["val"].dtype.itemsize))
        if reason := self._fuse(softmax, scores, weighted):
            self.decisions.append(FusionDecision(first, second, False, reason, bytes_moved=moved))
        else:
            why = "One attention call computes both matrix products and the softmax. The scores are never written to memory."
            self.decisions.append(FusionDecision(first, second, True, why, bytes_saved=moved))

    def _fuse(self, softmax: torch.fx.Node, scores: ScoreExpr, weighted: list[torch.fx.Node]) -> str:
        """Fuse the attention; return the reason why it cannot be fused, empty if it is."""
        if reason := _why_in_memory([*scores.path_nodes, softmax, *weighted[:-1]], softmax):
            return reason
        last: torch.fx.Node | None
        last, rank = weighted[-1], softmax.meta["val"].dim()
        if softmax.args[1] not in (-1, rank - 1):
            return "The softmax is not over the last dimension (the keys)."
        query, keys, value = (as_node(t) for t in (*scores.product.args[-2:], last.args[1]))
        if not all(map(_fake_mode_of, (softmax, query, keys, value, last))):
            return "Its tensors have no fake mode, so their sizes are not known."
        if rank == 4:
            heads = softmax.meta["val"].shape[:2]
            query, keys, value = (self._with_head_dim(t, heads) for t in (query, keys, value))
            last = _find_head_view(last, (*heads, *last.meta["val"].shape[1:]))
            if last is None:
                return "Its result has no view with a separate head dimension."
        lead = query.meta["val"].shape[:-2]
        if len(lead) != rank - 2 or not all(
            have_same_shape(t.meta["val"].shape[:-2], lead) for t in (keys, value, softmax)
        ):
            return "Queries, keys and values have different batch sizes."
        if any(at != rank for _, at in scores.terms):
            return "The bias or mask is added in another view of the scores than the softmax."
        if reason := self._why_unsupported(query, value, scores):
            return reason
        mask = self._shared_mask(scores, query.meta["val"].dtype, softmax)
        for node in (*scores.path_nodes, softmax, *weighted[:-1]):
            _redirect_size_reads(node, scores.product, (query, keys))
        self._insert_attention(last, (query, keys, value), mask, scores.scale)
        return ""

    def _with_head_dim(self, operand: torch.fx.Node, heads: Sequence[Any]) -> torch.fx.Node:
        """Return a matmul operand with heads in a separate dimension.

        It is the tensor that the operand is a view of, or else a new view of the operand.
        """
        view = operand
        while view.target in COPY_OPS or preserves_element_order(view):
            inner = as_node(view.args[0])
            if not keeps_last_two_dims(inner, view):
                break
            if view.meta["val"].dim() == 4 and (
                preserves_element_order(view) or not have_same_shape(*shapes_of(inner, view))
            ):
                break
            view = inner
        if view.meta["val"].dim() == 4:
            return view
        shape = (*heads, *operand.meta["val"].shape[-2:])
        if static_sizes(shape) is None:
            return operand
        with self.graph.inserting_after(operand), _fake_mode_of(operand):
            return self._call_op(operand, aten.view.default, (operand, list(shape)))

    def _why_unsupported(self, query: torch.fx.Node, value: torch.fx.Node, scores: ScoreExpr) -> str:
        """Return why a call would differ or no library has a kernel; empty if neither."""
        dtype = query.meta["val"].dtype
        widths = [t.meta["val"].shape[-1] for t in (query, value)]
        if dtype not in ATTENTION_DTYPES:
            return f"No library has an attention kernel for {str(dtype).removeprefix('torch.')}."
        sizes = static_sizes(widths) or (0,)
        if not all(0 < n <= MAX_HEAD_DIM and n * dtype.itemsize % ALIGNMENT_BYTES == 0 for n in sizes):
            named = " and ".join(dict.fromkeys(map(str, widths)))
            return f"No library has an attention kernel for head dimension {named}."
        if not 0 < scores.scale < math.inf:
            return "The scale of its scores is not a positive number."
        for change, _ in scores.terms:
            if isinstance(change, MaskedFillTerm) and not change.fill < MIN_SCORE:
                return f"It fills masked scores with {change.fill:g}; ordinary scores can be as low."
            if (
                isinstance(change, AddTerm)
                and dtype in HALF_DTYPES
                and not self.value_ranges.is_embedding_lookup(change.node)
            ):
                return "It adds a bias to 16-bit scores. Fused attention adds in 32 bits and would round differently."
        return ""

    def _insert_attention(
        self, last: torch.fx.Node, operands: tuple[torch.fx.Node, ...], mask: torch.fx.Node | None, scale: float
    ) -> None:
        with self.graph.inserting_before(last), _fake_mode_of(last):
            query, keys, value = operands
            operands = (query, self._call_op(last, aten.transpose.int, (keys, -2, -1)), value)
            by_heads = query.meta["val"].dim() == 4
            if not by_heads:  # Add a batch dimension of size 1.
                operands = tuple(self._call_op(last, aten.unsqueeze.default, (t, 0)) for t in operands)
            fused = self._call_op(last, composite_op("attention"), (*operands, mask), {"scale": scale})
            # Libraries store (batch, row, head, column). Readers of the view get the strides of eager's result.
            fused.meta["val"] = fused.meta["val"].transpose(1, 2).contiguous().transpose(1, 2)
            as_it_is = (aten.permute.default, (fused, [0, 1, 2, 3])) if by_heads else (aten.squeeze.dim, (fused, 0))
            view = self._call_op(last, *as_it_is)
        view.meta["val"] = last.meta["val"]
        last.replace_all_uses_with(view)
        self.graph.erase_node(last)
        if by_heads:
            fused.name = last.name  # Keep the name: recorded values are compared by it.
            self._remove_head_copies(view)

    def _remove_head_copies(self, view: torch.fx.Node) -> None:
        """Remove copies to (batch, row, head, column) order: the memory already has this order."""
        for turned in list(view.users):
            if turned.target not in (aten.transpose.int, aten.permute.default) or len(turned.users) != 1:
                continue
            (copy,) = turned.users
            meta = tensor_meta(copy)
            is_row_major = meta is not None and meta.is_contiguous()
            if copy.target is aten.clone.default and is_row_major and _swaps_heads(turned):
                copy.replace_all_uses_with(turned)
                turned.meta["val"] = copy.meta["val"]
                self.graph.erase_node(copy)

    def _shared_mask(self, scores: ScoreExpr, dtype: torch.dtype, softmax: torch.fx.Node) -> torch.fx.Node | None:
        """Return the mask to add to the scores, None without one; equal masks are shared."""
        changes = tuple(change for change, _ in scores.terms)
        if changes and (changes, dtype) not in self._masks:
            with self.graph.inserting_before(softmax), _fake_mode_of(softmax):
                self._masks[changes, dtype] = self._build_mask(changes, dtype, softmax)
        return self._masks[changes, dtype] if changes else None

    def _build_mask(
        self, changes: Sequence[AddTerm | MaskedFillTerm], dtype: torch.dtype, at: torch.fx.Node
    ) -> torch.fx.Node:
        mask: torch.fx.Node | None = None
        lowest = 0.0
        for change in changes:
            if isinstance(change, AddTerm):
                mask = self._add_bias(mask, change, dtype, at)
                lowest += min(bound * change.factor for bound in self.value_ranges.range_of(change.node))
            else:
                other_scores = mask if mask is not None else self._full_scalar(at, 0.0, dtype)
                # The lowest finite number: a row that sees no key then weighs all keys equally, whatever its scores.
                fill = NEG_INF if change.fill == NEG_INF else torch.finfo(dtype).min
                number = self._full_scalar(at, fill, dtype)
                chosen = (number, other_scores) if change.fills_where else (other_scores, number)
                mask = self._call_op(at, aten.where.self, (change.node, *chosen))
                lowest = min(lowest, fill)
        assert mask is not None
        if not lowest >= torch.finfo(dtype).min:
            mask = self._nan_for_masked_rows(mask, dtype, at)
        return mask if mask.meta["val"].dim() > 1 else self._call_op(at, aten.unsqueeze.default, (mask, 0))

    def _add_bias(
        self, mask: torch.fx.Node | None, change: AddTerm, dtype: torch.dtype, at: torch.fx.Node
    ) -> torch.fx.Node:
        part = change.node
        if change.factor != 1.0:
            part = self._call_op(at, aten.mul.Tensor, (part, change.factor))
        if part.meta["val"].dtype != dtype:
            part = self._call_op(at, aten._to_copy.default, (part,), {"dtype": dtype})
        return part if mask is None else self._call_op(at, aten.add.Tensor, (mask, part))

    def _nan_for_masked_rows(self, mask: torch.fx.Node, dtype: torch.dtype, at: torch.fx.Node) -> torch.fx.Node:
        """Set mask rows that see no key to NaN, as their softmax is; libraries differ there."""
        most = self._call_op(at, aten.amax.default, (mask, [-1], True))
        is_blind = self._call_op(at, aten.eq.Scalar, (most, NEG_INF))
        return self._call_op(at, aten.where.self, (is_blind, self._full_scalar(at, math.nan, dtype), mask))

    def _full_scalar(self, at: torch.fx.Node, value: float, dtype: torch.dtype) -> torch.fx.Node:
        return self._call_op(at, aten.full.default, ([], value), {"dtype": dtype, "device": at.meta["val"].device})

    def _call_op(
        self, origin: torch.fx.Node, target: Any, args: tuple[Any, ...], kwargs: dict[str, Any] | None = None
    ) -> torch.fx.Node:
        new_node = self.graph.create_node("call_function", target, args, kwargs or {})
        values, named = torch.fx.map_arg((args, dict(kwargs or {})), lambda n: n.meta["val"])
        new_node.meta["val"] = target(*values, **named)
        set_provenance(new_node, provenance_of(origin))
        return new_node


def _swaps_heads(turned: torch.fx.Node) -> bool:
    """Return True if a view swaps the second and third of four dimensions."""
    if turned.target is aten.permute.default:
        return list(turned.args[1]) == [0, 2, 1, 3]  # type: ignore[arg-type]
    return {int(d) % 4 for d in turned.args[1:]} == {1, 2}  # type: ignore[arg-type]


def _fake_mode_of(node: torch.fx.Node) -> Any:
    return detect_fake_mode([node.meta["val"]])


def _readers(node: torch.fx.Node) -> list[torch.fx.Node]:
    """Return the readers of a node's elements; size queries do not count."""
    return [user for user in node.users if user.target not in SIZE_OPS]


def _redirect_size_reads(
    node: torch.fx.Node, scores: torch.fx.Node, read_nodes: tuple[torch.fx.Node, torch.fx.Node]
) -> None:
    """Redirect size queries on a removed node to the operands of the matmul."""
    rank = node.meta["val"].dim()
    rows, columns = read_nodes if rank == 4 else (as_node(a) for a in scores.args[-2:])
    for user in [u for u in node.users if u.target in SIZE_OPS]:
        dim = int(user.args[1]) % rank  # type: ignore[arg-type]
        user.args = (columns if dim == rank - 1 else rows, dim)


def _find_head_view(weighted: torch.fx.Node, shape: Sequence[Any]) -> torch.fx.Node | None:
    """Return the only view of a matmul result with heads in a separate dimension."""
    head_view = weighted
    while (
        len(users := _readers(head_view)) == 1
        and preserves_element_order(users[0])
        and keeps_last_two_dims(head_view, users[0])
    ):
        head_view = users[0]
        if have_same_shape(head_view.meta["val"].shape, shape):
            return head_view
    return None


def _why_in_memory(path: Sequence[torch.fx.Node], softmax: torch.fx.Node) -> str:
    """Return why a tensor that fusion removes must be in memory; empty if none must."""
    for position, node in enumerate(path):
        if len(_readers(node)) > 1:
            noun = "weights" if position >= list(path).index(softmax) else "scores"
            is_kept = any(user.op == "output" for user in _readers(node))
            reason = "returned, or saved for the backward" if is_kept else "read by another operator"
            return f"Its {noun} are {reason}, so they must be in memory."
    return ""
