"""Lowerings of factory operators: full, arange and others."""

from __future__ import annotations

from typing import Any

import torch

from engine.ir.loop_ir.builder import LoopBuilder
from engine.ir.loop_ir.index_expr import as_size
from engine.ir.loop_ir.ops import LoopIROp
from engine.ir.loop_ir.tensor_def import Coordinates
from engine.ir.static_sizes import static_sizes
from engine.lowering.context import LoweredTensor, LoweringContext, fake_result, lowered_tensors
from engine.lowering.fallbacks.kinds import LoweringFallback, NotLowered
from engine.lowering.ops.indexing import aten, prims
from engine.lowering.promotion import check_arguments, check_fill_value, is_float_expr, number_type, stored_loader
from engine.lowering.registry import register_lowering
from engine.lowering.result_strides import symbolic_shape


def _full(low: LoweringContext, fill: Any) -> LoweredTensor:
    value = fake_result(low)
    if lowered_tensors(fill):
        raise NotLowered(LoweringFallback.MIXED_DTYPES, "a fill value that is a tensor has no lowering")
    check_fill_value(value.dtype, fill)
    shape = symbolic_shape(value)
    return low.pointwise(shape, value.dtype, stored_loader(fill, value.dtype, shape))


register_lowering(aten.zeros.default, aten.zeros_like.default, aten.new_zeros.default)(
    lambda low, *_, **__: _full(low, 0)
)
register_lowering(aten.ones.default, aten.ones_like.default, aten.new_ones.default)(lambda low, *_, **__: _full(low, 1))
register_lowering(aten.scalar_tensor.default)(lambda low, fill, **_: _full(low, fill))
register_lowering(aten.full.default, aten.full_like.default, aten.new_full.default, aten.fill.Scalar)(
    lambda low, *args, **_: _full(low, args[-1])
)


def _arange(low: LoweringContext, start: Any, step: Any) -> LoweredTensor:
    value = fake_result(low)
    dtype = value.dtype
    check_arguments(dtype != torch.bool, "a range of bool")
    if is_float_expr(start) or is_float_expr(step):
        raise NotLowered(
            LoweringFallback.SYMBOLIC_NUMBER,
            "an integer range with fractional bounds computed from sizes has no lowering",
        )

    def body(b: LoopBuilder, i: Coordinates) -> LoopIROp:
        if float in map(number_type, (start, step)):
            math_dtype = torch.float64 if dtype == torch.float64 else torch.float32
            position = b.cast(b.index_value(i[0]), math_dtype)
            return b.cast(position * float(step) + float(start), dtype)
        position = b.index_value(i[0])
        if dtype == torch.int64 or static_sizes((start, step)) is None:
            position = b.cast(position, torch.int64)
        if step != 1:
            position = position * b.size(as_size(step), position.dtype)
        if start != 0:
            position = position + b.size(as_size(start), position.dtype)
        return b.cast(position, dtype)

    return low.pointwise(symbolic_shape(value), dtype, body)


register_lowering(aten.arange.default)(lambda low, end, **_: _arange(low, 0, 1))
register_lowering(aten.arange.start)(lambda low, start, end, **_: _arange(low, start, 1))
register_lowering(aten.arange.start_step)(lambda low, start, end, step=1, **_: _arange(low, start, step))
register_lowering(prims.iota.default)(lambda low, length, *, start, step, **_: _arange(low, start, step))
