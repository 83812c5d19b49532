"""Random numbers that a kernel generates from a seed and the element's position."""

from __future__ import annotations

from typing import Any

import torch

from engine.ir.loop_ir.builder import LoopBuilder
from engine.ir.loop_ir.index_expr import IndexExpr, contiguous_strides, flatten, static_product
from engine.ir.loop_ir.ops import LoopIROp
from engine.ir.loop_ir.tensor_def import Coordinates
from engine.lowering.context import LoweredTensor, LoweringContext, fake_result
from engine.lowering.fallbacks.kinds import LoweringFallback, NotLowered
from engine.lowering.philox_ops import random_bits, random_uniform
from engine.lowering.registry import register_lowering
from engine.lowering.result_strides import symbolic_shape

MAX_ELEMENTS_PER_SEED = 1 << 31
"""Most elements for which one seed yields distinct random numbers."""


def _philox_op(low: LoweringContext, seeds: LoweredTensor, which: int, name: str, drawn: torch.dtype) -> LoweredTensor:
    value = fake_result(low)
    shape = symbolic_shape(value)
    if (static_product(shape) or 0) > MAX_ELEMENTS_PER_SEED:
        raise NotLowered(
            LoweringFallback.TOO_LARGE, f"a random tensor of more than {MAX_ELEMENTS_PER_SEED} elements has no lowering"
        )

    def body(b: LoopBuilder, i: Coordinates) -> LoopIROp:
        seed = seeds.load(b, (IndexExpr({}, which),))
        position = b.cast(b.index_value(flatten(i, contiguous_strides(shape))), torch.int32)
        return b.cast(b.call(name, seed, position, dtype=drawn), value.dtype)

    return low.pointwise(shape, value.dtype, body)


@register_lowering(random_uniform)
def uniform(low: LoweringContext, seeds: LoweredTensor, which: int, _size: Any) -> LoweredTensor:
    return _philox_op(low, seeds, which, "rand", torch.float32)


@register_lowering(random_bits)
def bits(low: LoweringContext, seeds: LoweredTensor, which: int, _size: Any) -> LoweredTensor:
    return _philox_op(low, seeds, which, "randint", torch.uint32)
