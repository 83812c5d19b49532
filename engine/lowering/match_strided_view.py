"""Strided views: ATen calls take them, and programs return them, without a copy."""

from __future__ import annotations

from engine.ir.loop_ir.index_expr import LoopVar, Size, contiguous_strides, exact_quotient, flatten, variable
from engine.ir.static_sizes import static_size
from engine.lowering.context import LoweredTensor


def strided_view_of(value: LoweredTensor) -> tuple[tuple[Size, ...], Size] | None:
    """Return ``(strides, offset)`` of a strided view of memory, None for other index maps."""
    if value.index_map is None:
        is_apart = value.is_complex and not _is_complex_layout(value.definition.stride, 0)
        return None if is_apart else (value.definition.stride, 0)
    variables = tuple(LoopVar(f"v{d}", n) for d, n in enumerate(value.shape))
    flat = flatten(value.index_map(tuple(variable(v) for v in variables)), value.definition.stride)
    if not flat.terms.keys() <= set(variables):
        return None
    usual = value.unit_strides or contiguous_strides(value.shape)
    strides = tuple(flat.terms.get(v, 0) if v.size != 1 else usual[d] for d, v in enumerate(variables))
    negative = any((static_size(s) or 0) < 0 for s in strides)
    if negative or (value.is_complex and not _is_complex_layout(strides, flat.const)):
        return None
    return strides, flat.const


def _is_complex_layout(strides: tuple[Size, ...], offset: Size) -> bool:
    """Return True if real and imaginary parts are adjacent, as in complex tensors."""
    return strides[-1] == 1 and all(exact_quotient(s, 2) is not None for s in (*strides[:-1], offset))
