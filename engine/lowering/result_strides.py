"""Sizes and strides that lowered results must have, read from their fake tensors."""

from __future__ import annotations

import contextlib

import sympy
import torch
import torch.fx

from engine.ir.loop_ir.index_expr import Size, as_size, contiguous_strides, sizes_equal, symbols_of
from engine.ir.static_sizes import static_sizes
from engine.torch_private.symbolic_shapes import statically_known_true
from engine.torch_private.sympy_functions import sympy_functions

REAL_DTYPES = {torch.complex64: torch.float32, torch.complex128: torch.float64}
"""Dtype of the real and imaginary parts of each supported complex dtype."""


def as_real_meta(value: torch.Tensor) -> torch.Tensor:
    """Return a meta tensor with the layout of a complex tensor's real view.

    Strides count real elements. Other tensors are returned unchanged.
    """
    if value.dtype not in REAL_DTYPES:
        return value
    with getattr(value, "fake_mode", None) or contextlib.nullcontext():
        return torch.empty_strided(
            (*value.shape, 2), (*(2 * s for s in value.stride()), 1), dtype=REAL_DTYPES[value.dtype], device="meta"
        )


def dense_stride(value: torch.Tensor) -> tuple[Size, ...]:
    """Return the strides of a dense value (no gaps, no overlap), else contiguous strides."""
    shape = tuple(as_size(s) for s in value.shape)
    stride = tuple(_without_clamp(as_size(s)) for s in value.stride())
    expected: Size = 1
    dims = [d for d in range(len(shape)) if shape[d] != 1]
    remaining = list(dims)
    while remaining:
        fitting = next((d for d in reversed(remaining) if sizes_equal(stride[d], expected)), None)
        if fitting is None:
            return contiguous_strides(shape)
        expected = as_size(expected * shape[fitting])
        remaining.remove(fitting)
    shape_symbols = symbols_of(shape)
    # The stride of a dimension of size 1 does not matter. It may contain a symbol without definition.
    return tuple(
        s if n != 1 or symbols_of((s,)) <= shape_symbols else expected for n, s in zip(shape, stride, strict=True)
    )


def _without_clamp(stride: Size) -> Size:
    """Replace ``Max(1, size)`` by the size: the two differ only for tensors without elements."""
    expr = sympy.sympify(stride)
    clamps = [e for e in expr.atoms(sympy_functions.Max) if len(e.args) == 2 and 1 in e.args]
    return as_size(expr.xreplace({e: next(a for a in e.args if a != 1) for e in clamps}))


def non_overlapping_stride(value: torch.Tensor) -> tuple[Size, ...]:
    """Return the strides of a value without overlapping elements, else its ``dense_stride``.

    Gaps between elements are allowed.
    """
    stride = tuple(as_size(s) for s in value.stride())
    return stride if is_non_overlapping(symbolic_shape(value), stride) else dense_stride(value)


def is_non_overlapping(shape: tuple[Size, ...], stride: tuple[Size, ...]) -> bool:
    """Return True if no two elements provably share a memory address.

    The result is False for symbolic sizes or strides.
    """
    reach = 1
    for step, size in sorted(zip(stride, shape, strict=True), key=lambda pair: str(pair[0]).zfill(20)):
        numbers = static_sizes((step, size))
        if numbers is None or (numbers[1] > 1 and numbers[0] < reach):
            return False
        reach += (numbers[1] - 1) * numbers[0]
    return True


def has_overlap(value: torch.Tensor) -> bool:
    """Return True if elements share a memory address, as in windows; static strides only."""
    shape, stride = symbolic_shape(value), tuple(as_size(s) for s in value.stride())
    return static_sizes((*shape, *stride)) is not None and not is_non_overlapping(shape, stride)


def symbolic_shape(value: torch.Tensor) -> tuple[Size, ...]:
    """Return the shape of a fake tensor as ``Size`` values."""
    return tuple(as_size(s) for s in value.shape)


def is_guarded_equal(size: Size, eager_size: int | torch.SymInt) -> bool:
    """Return True if the guards make a size equal to one of a fake tensor."""
    if sizes_equal(size, as_size(eager_size)):
        return True
    shape_env = getattr(getattr(eager_size, "node", None), "shape_env", None)
    if shape_env is None:
        return False
    same_size = shape_env.create_symintnode(sympy.sympify(size), hint=None)
    return bool(statically_known_true(same_size == eager_size))
