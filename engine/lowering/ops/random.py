"""Random numbers that a kernel makes where it uses them, from a seed and the element's place."""

from __future__ import annotations

from typing import Any

import torch

from engine.ir.index import Index, contiguous_strides, flatten, product
from engine.ir.loops import Builder, Coordinates, Op
from engine.ir.philox import random_bits, random_uniform
from engine.lowering.table import Lowering, NotLowered, Tensor, lowers, result_value, sizes_of

MOST = 1 << 31
"""Elements that one seed tells apart."""


def _drawn(low: Lowering, seeds: Tensor, which: int, name: str, drawn: torch.dtype) -> Tensor:
    value = result_value(low)
    shape = sizes_of(value)
    count = product(shape)
    if isinstance(count, int) and count > MOST:
        raise NotLowered("so many random numbers are drawn by ATen")

    def body(b: Builder, i: Coordinates) -> Op:
        seed = seeds.at(b, (Index({}, which),))
        place = b.cast(b.position(flatten(i, contiguous_strides(shape))), torch.int32)
        return b.cast(b.call(name, seed, place, dtype=drawn), value.dtype)

    return low.pointwise(shape, value.dtype, body)


@lowers(random_uniform)
def uniform(low: Lowering, seeds: Tensor, which: int, _size: Any) -> Tensor:
    return _drawn(low, seeds, which, "rand", torch.float32)


@lowers(random_bits)
def bits(low: Lowering, seeds: Tensor, which: int, _size: Any) -> Tensor:
    return _drawn(low, seeds, which, "randint", torch.uint32)
