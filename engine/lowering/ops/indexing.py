"""Indirect reads: embedding, gather, index, index_select."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from engine.ir.loop_ir.builder import LoopBuilder
from engine.ir.loop_ir.index_expr import IndexExpr, Size
from engine.ir.loop_ir.ops import LoopIROp
from engine.ir.loop_ir.tensor_def import Coordinates
from engine.lowering.context import LoweredTensor, LoweringContext, fake_result
from engine.lowering.fallbacks.kinds import LoweringFallback, NotLowered
from engine.lowering.ops.views import at_least_1d, broadcast_to
from engine.lowering.promotion import broadcast_shape, canonical_dim
from engine.lowering.registry import register_lowering
from engine.lowering.result_strides import symbolic_shape

aten = torch.ops.aten


prims = torch.ops.prims


@register_lowering(aten.embedding.default)
def embedding(low: LoweringContext, weight: LoweredTensor, indices: LoweredTensor, *_: Any) -> LoweredTensor:
    rows = weight.shape[0]
    shape = symbolic_shape(fake_result(low))
    return low.pointwise(
        shape,
        weight.dtype,
        lambda b, i: weight.load(b, (b.indirect_index(indices.load(b, i[:-1]), rows, wraps=False), i[-1])),
    )


@register_lowering(aten.index_select.default)
def index_select(low: LoweringContext, a: LoweredTensor, dim: int, indices: LoweredTensor) -> LoweredTensor:
    row, positions, dim = at_least_1d(a), at_least_1d(indices), canonical_dim(dim, len(a.shape))

    def body(b: LoopBuilder, i: Coordinates) -> LoopIROp:
        here = positions.load(b, (i[dim] if i else IndexExpr(),))
        return row.load(b, (*i[:dim], b.indirect_index(here, row.shape[dim], wraps=False), *i[dim + 1 :]))

    return low.pointwise(symbolic_shape(fake_result(low)), a.dtype, body)


@register_lowering(aten.gather.default)
def gather(low: LoweringContext, a: LoweredTensor, dim: int, indices: LoweredTensor, **_: Any) -> LoweredTensor:
    row, dim = at_least_1d(a), canonical_dim(dim, len(a.shape))
    return low.pointwise(
        indices.shape,
        a.dtype,
        lambda b, i: row.load(
            b, (*i[:dim], b.indirect_index(indices.load(b, i), row.shape[dim], wraps=False), *i[dim + 1 :])
        ),
    )


@register_lowering(aten.index.Tensor, aten._unsafe_index.Tensor)
def index(low: LoweringContext, a: LoweredTensor, indices: Sequence[LoweredTensor | None]) -> LoweredTensor:
    index_tensors = [t for t in indices if t is not None]
    if any(t.dtype in (torch.bool, torch.uint8) for t in index_tensors):
        raise NotLowered(
            LoweringFallback.DATA_DEPENDENT_SIZE,
            "a boolean index has no lowering: the size of its result is data-dependent",
        )
    is_checked = low.current_node is None or low.current_node.target is not aten._unsafe_index.Tensor
    _, position = indexed_elements(a, indices, is_checked=is_checked)
    return low.pointwise(symbolic_shape(fake_result(low)), a.dtype, lambda b, i: a.load(b, position(b, i)))


def indexed_elements(
    a: LoweredTensor, indices: Sequence[LoweredTensor | None], *, is_checked: bool
) -> tuple[tuple[Size, ...], Callable[[LoopBuilder, Coordinates], Coordinates]]:
    """Return the shape of ``a[indices]``, and the position in ``a`` of each of its elements."""
    picked_shape = broadcast_shape([t for t in indices if t is not None])
    spread = {d: broadcast_to(t, picked_shape) for d, t in enumerate(indices) if t is not None}
    positions, others = sorted(spread), [d for d in range(len(a.shape)) if d not in spread]
    start = positions[0] if positions == list(range(positions[0], positions[0] + len(positions))) else 0
    rest = tuple(a.shape[d] for d in others)

    def position(b: LoopBuilder, i: Coordinates) -> Coordinates:
        where = i[start : start + len(picked_shape)]
        kept = dict(zip(others, (*i[:start], *i[start + len(picked_shape) :]), strict=True))
        return tuple(
            b.indirect_index(spread[d].load(b, where), a.shape[d], is_checked=is_checked) if d in spread else kept[d]
            for d in range(len(a.shape))
        )

    return (*rest[:start], *picked_shape, *rest[start:]), position
