"""Indirect reads: embedding, gather, index, index_select."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from engine.ir.loop_ir.builder import LoopBuilder
from engine.ir.loop_ir.index_expr import IndexExpr
from engine.ir.loop_ir.ops import LoopIROp
from engine.ir.loop_ir.tensor_def import Coordinates
from engine.lowering.context import LoweredTensor, LoweringContext, fake_result
from engine.lowering.fallbacks.kinds import LoweringFallback, NotLowered
from engine.lowering.ops.views import at_least_1d, broadcast_to
from engine.lowering.promotion import broadcast_shape, canonical_dim, check_supported_dtype
from engine.lowering.registry import register_lowering
from engine.lowering.result_strides import symbolic_shape

aten = torch.ops.aten


prims = torch.ops.prims


@register_lowering(aten.embedding.default)
def embedding(low: LoweringContext, weight: LoweredTensor, indices: LoweredTensor, *_: Any) -> LoweredTensor:
    check_supported_dtype(weight)
    rows = weight.shape[0]
    shape = symbolic_shape(fake_result(low))
    return low.pointwise(
        shape,
        weight.dtype,
        lambda b, i: weight.load(b, (b.indirect_index(indices.load(b, i[:-1]), rows, wraps=False), i[-1])),
    )


@register_lowering(aten.index_select.default)
def index_select(low: LoweringContext, a: LoweredTensor, dim: int, indices: LoweredTensor) -> LoweredTensor:
    check_supported_dtype(a)
    row, positions, dim = at_least_1d(a), at_least_1d(indices), canonical_dim(dim, len(a.shape))

    def body(b: LoopBuilder, i: Coordinates) -> LoopIROp:
        here = positions.load(b, (i[dim] if i else IndexExpr(),))
        return row.load(b, (*i[:dim], b.indirect_index(here, row.shape[dim], wraps=False), *i[dim + 1 :]))

    return low.pointwise(symbolic_shape(fake_result(low)), a.dtype, body)


@register_lowering(aten.gather.default)
def gather(low: LoweringContext, a: LoweredTensor, dim: int, indices: LoweredTensor, **_: Any) -> LoweredTensor:
    check_supported_dtype(a)
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
    check_supported_dtype(a)
    index_tensors = [t for t in indices if t is not None]
    if any(t.dtype in (torch.bool, torch.uint8) for t in index_tensors):
        raise NotLowered(
            LoweringFallback.DATA_DEPENDENT_SIZE,
            "a boolean index has no lowering: the size of its result is data-dependent",
        )
    picked_shape = broadcast_shape(index_tensors)
    spread = {d: broadcast_to(t, picked_shape) for d, t in enumerate(indices) if t is not None}
    positions = sorted(spread)
    is_together = positions == list(range(positions[0], positions[0] + len(positions)))
    start = positions[0] if is_together else 0
    is_checked = low.current_node is None or low.current_node.target is not aten._unsafe_index.Tensor
    shape = symbolic_shape(fake_result(low))
    others = [d for d in range(len(a.shape)) if d not in spread]

    def body(b: LoopBuilder, i: Coordinates) -> LoopIROp:
        where = i[start : start + len(picked_shape)]
        rest = dict(zip(others, (*i[:start], *i[start + len(picked_shape) :]), strict=True))
        return a.load(
            b,
            tuple(
                b.indirect_index(spread[d].load(b, where), a.shape[d], is_checked=is_checked)
                if d in spread
                else rest[d]
                for d in range(len(a.shape))
            ),
        )

    return low.pointwise(shape, a.dtype, body)
