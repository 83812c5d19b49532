"""Strides of lowered results."""

from __future__ import annotations

import contextlib
from typing import Any

import torch
import torch.fx

from engine.ir.loop_ir.index_expr import Size, as_size, contiguous_strides, sizes_equal, symbols_of

REAL_DTYPES = {torch.complex64: torch.float32, torch.complex128: torch.float64}
"""The type of the parts of complex types that loops compute with."""


def as_real_meta(value: Any) -> Any:
    """A stand-in for a complex tensor's real view: no memory, the same strides in units of its parts. Other values stay."""
    if not isinstance(value, torch.Tensor) or value.dtype not in REAL_DTYPES:
        return value
    with getattr(value, "fake_mode", None) or contextlib.nullcontext():
        return torch.empty_strided(
            (*value.shape, 2), (*(2 * s for s in value.stride()), 1), dtype=REAL_DTYPES[value.dtype], device="meta"
        )


def dense_stride(value: torch.Tensor) -> tuple[Size, ...]:
    """The strides of a value if it fills its memory without gaps or overlap, else those of a row-major copy."""
    shape = tuple(as_size(s) for s in value.shape)
    stride = tuple(as_size(s) for s in value.stride())
    wanted: Size = 1
    dims = [d for d in range(len(shape)) if shape[d] != 1]
    remaining = list(dims)
    while remaining:
        fitting = next((d for d in reversed(remaining) if sizes_equal(stride[d], wanted)), None)
        if fitting is None:
            return contiguous_strides(shape)
        wanted = as_size(wanted * shape[fitting])
        remaining.remove(fitting)
    told = symbols_of(shape)
    # A stride over one element may be a symbol that nothing tells, and does not matter.
    return tuple(s if n != 1 or symbols_of((s,)) <= told else wanted for n, s in zip(shape, stride, strict=True))


def non_overlapping_stride(value: torch.Tensor) -> tuple[Size, ...]:
    """The strides of a value if no two of its elements share a place, gaps or not, else those of ``dense_stride``."""
    stride = tuple(as_size(s) for s in value.stride())
    return stride if is_non_overlapping(symbolic_shape(value), stride) else dense_stride(value)


def is_non_overlapping(shape: tuple[Size, ...], stride: tuple[Size, ...]) -> bool:
    """Whether no two elements of a walk over memory are known to fall on one place."""
    reach = 1
    for step, size in sorted(zip(stride, shape, strict=True), key=lambda pair: str(pair[0]).zfill(20)):
        if not isinstance(step, int) or not isinstance(size, int) or (size > 1 and step < reach):
            return False
        reach += (size - 1) * step
    return True


def symbolic_shape(value: torch.Tensor) -> tuple[Size, ...]:
    """The shape of a fake value."""
    return tuple(as_size(s) for s in value.shape)
