"""Lower cumsum, cumprod, cummax, cummin and logcumsumexp to scans of the loop IR."""

from __future__ import annotations

import functools

import torch

from engine.ir.loop_ir.builder import LoopBuilder
from engine.ir.loop_ir.ops import LoopIROp
from engine.ir.loop_ir.tensor_def import Coordinates
from engine.ir.static_sizes import static_size
from engine.lowering.context import LoweredTensor, LoweringContext, fake_result
from engine.lowering.fallbacks.kinds import LoweringFallback, NotLowered
from engine.lowering.ops.reductions import aten
from engine.lowering.promotion import canonical_dim, stored_loader
from engine.lowering.registry import register_lowering

MAX_SCAN_ELEMENTS = 1 << 17
"""Longest scan that one program computes."""


def _cumulative_extreme(
    low: LoweringContext, a: LoweredTensor, dim: int, *, kind: str
) -> tuple[LoweredTensor, LoweredTensor]:
    """Return the cumulative maximum or minimum, and the index of its last occurrence.

    The index is the cumulative maximum of all positions that hold the extreme so far.
    """
    if a.dtype == torch.bool:  # bool has no smallest and largest number, which a scan needs.
        numbers = low.pointwise(a.shape, torch.int32, a.loader(torch.int32))
        running, positions = _cumulative_extreme(low, numbers, dim, kind=kind)
        return low.pointwise(a.shape, torch.bool, running.loader(torch.bool)), positions
    dim = _scan_dim(kind, a, dim)
    if not a.shape or a.shape[dim] == 1:
        first = low.full(a.shape, torch.int64, 0)
        return low.pointwise(a.shape, a.dtype, a.load), first
    values = low.scan(kind, a.shape, dim, a.dtype, a.load)

    def position(b: LoopBuilder, i: Coordinates) -> LoopIROp:
        value = a.load(b, i)
        holds = value.equals(values.load(b, i))
        if value.dtype.is_floating_point:
            holds = holds | value.is_nan()
        return b.where(holds, b.cast(b.index_value(i[dim]), torch.int64), 0)

    positions = low.pointwise(a.shape, torch.int64, position, name=f"{low.node_name}_holders")
    return values, low.scan("max", a.shape, dim, torch.int64, positions.load)


def _scan_dim(kind: str, a: LoweredTensor, dim: int) -> int:
    """Return the non-negative dimension of a scan.

    Raises:
        NotLowered: it is so long that many programs should share it, as in a library.
    """
    dim = canonical_dim(dim, len(a.shape))
    if a.shape and (static_size(a.shape[dim]) or 0) > MAX_SCAN_ELEMENTS:
        raise NotLowered(
            LoweringFallback.FASTER_IN_ATEN,
            f"a scan ({kind}) of more than {MAX_SCAN_ELEMENTS} elements is faster in ATen, which uses many blocks",
        )
    return dim


def _cumulative(
    low: LoweringContext, a: LoweredTensor, dim: int, *, kind: str, dtype: torch.dtype | None = None
) -> LoweredTensor:
    result = fake_result(low).dtype
    dim = _scan_dim(kind, a, dim)
    if not a.shape or a.shape[dim] in (0, 1):
        return low.pointwise(a.shape, result, a.loader(result))
    return low.scan(kind, a.shape, dim, result, stored_loader(a, result, a.shape))


register_lowering(aten.cumsum.default)(functools.partial(_cumulative, kind="sum"))
register_lowering(aten.cumprod.default)(functools.partial(_cumulative, kind="prod"))
register_lowering(aten.logcumsumexp.default)(functools.partial(_cumulative, kind="logaddexp"))
register_lowering(aten.cummax.default)(functools.partial(_cumulative_extreme, kind="max"))
register_lowering(aten.cummin.default)(functools.partial(_cumulative_extreme, kind="min"))
