"""Type promotion and broadcasting of loop-IR operands."""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from typing import Any

import sympy
import torch
import torch.fx

from engine.ir.loop_ir.index_expr import ZERO, Size
from engine.ir.loop_ir.tensor_def import Body
from engine.ir.node_values import tensors_in
from engine.lowering.context import LoweredTensor, lowered_tensors
from engine.lowering.fallbacks.kinds import LoweringFallback, NotLowered
from engine.torch_private.operators import ELEMENTWISE_TYPE_PROMOTION_KIND, elementwise_dtypes

SUPPORTED_DTYPES = frozenset((torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.bool))
SUPPORTED_DTYPES |= {torch.int8, torch.int16, torch.int32, torch.int64, torch.uint8}
"""Dtypes that loops support."""


DEFAULT = ELEMENTWISE_TYPE_PROMOTION_KIND.DEFAULT


INT_TO_FLOAT = ELEMENTWISE_TYPE_PROMOTION_KIND.INT_TO_FLOAT


ALWAYS_BOOL = ELEMENTWISE_TYPE_PROMOTION_KIND.ALWAYS_BOOL


NO_OPMATH = ELEMENTWISE_TYPE_PROMOTION_KIND.NO_OPMATH


@functools.lru_cache(maxsize=4096)
def _promote_dtypes_cached(
    tensors: tuple[tuple[torch.dtype, int], ...], numbers: tuple[type, ...], promotion: ELEMENTWISE_TYPE_PROMOTION_KIND
) -> tuple[torch.dtype, torch.dtype]:
    return elementwise_dtypes(
        *(k(1) for k in numbers),
        *(torch.empty((1,) * rank, dtype=dtype, device="meta") for dtype, rank in tensors),
        type_promotion_kind=promotion,
    )


def promote_dtypes(
    args: Sequence[Any], promotion: ELEMENTWISE_TYPE_PROMOTION_KIND = DEFAULT
) -> tuple[torch.dtype, torch.dtype]:
    """Return ``(compute dtype, result dtype)`` of an elementwise operator, as eager promotes."""
    tensors = lowered_tensors(list(args))
    numbers = tuple(number_type(a) for a in args if a is not None and not lowered_tensors(a))
    return _promote_dtypes_cached(tuple((t.dtype, min(len(t.shape), 1)) for t in tensors), numbers, promotion)


@functools.singledispatch
def number_type(number: Any) -> type:
    """Return the Python type of a number, also of one computed from sizes."""
    return type(number)


@number_type.register(sympy.Basic)
def _(number: sympy.Basic) -> type:
    return float if is_float_expr(number) else int


@number_type.register(complex)
def _(number: complex) -> type:
    return int  # No loop computes with it: the loader of the operand raises NotLowered.


def is_float_expr(number: Any) -> bool:
    """Return True if a symbolic number is not known to be an integer."""
    return isinstance(number, sympy.Expr) and number.is_integer is not True


def stored_loader(a: Any, dtype: torch.dtype, shape: tuple[Size, ...]) -> Body:
    """Return ``broadcast_loader``, with operands of other dtypes rounded to ``dtype``."""
    load = broadcast_loader(a, dtype, shape)
    if any(t.dtype == dtype for t in lowered_tensors(a)):
        return load
    return lambda b, index: b.round_to_dtype(load(b, index), dtype)


@functools.singledispatch
def broadcast_loader(a: Any, dtype: torch.dtype, shape: tuple[Size, ...]) -> Body:
    """Return a loader of a tensor or number, broadcast to ``shape`` and cast to ``dtype``.

    Raises:
        NotLowered: the number does not fit ``dtype``, or is of a kind that loops do not support.
    """
    raise NotLowered(LoweringFallback.SYMBOLIC_SIZE, "a bool computed from sizes has no lowering")


@broadcast_loader.register(float)
def _(a: float, dtype: torch.dtype, shape: tuple[Size, ...]) -> Body:
    return lambda b, index: b.constant(a, dtype)


@broadcast_loader.register(int)
def _(a: int, dtype: torch.dtype, shape: tuple[Size, ...]) -> Body:
    if not _fits_dtype(a, dtype):
        raise NotLowered(
            LoweringFallback.NUMBER_OUT_OF_RANGE,
            f"{a} does not fit in {str(dtype).removeprefix('torch.')}, where ATen wraps around or raises an error",
        )
    return lambda b, index: b.constant(a, dtype)


@broadcast_loader.register(complex)
def _(a: complex, dtype: torch.dtype, shape: tuple[Size, ...]) -> Body:
    raise NotLowered(
        LoweringFallback.COMPLEX_CONVERSION, f"the complex operand {a} of an operator on real loops has no lowering"
    )


@broadcast_loader.register(sympy.Expr)
def _(a: sympy.Expr, dtype: torch.dtype, shape: tuple[Size, ...]) -> Body:
    if is_float_expr(a) and not dtype.is_floating_point:
        raise NotLowered(LoweringFallback.MIXED_DTYPES, "a float operand of an integer operator has no lowering")
    return lambda b, index: b.constant(a, dtype)


@broadcast_loader.register(LoweredTensor)
def _(a: LoweredTensor, dtype: torch.dtype, shape: tuple[Size, ...]) -> Body:
    lead = len(shape) - len(a.shape)
    same = tuple(i + lead if s != 1 else None for i, s in enumerate(a.shape))
    return lambda b, index: b.cast(a.load(b, tuple(ZERO if i is None else index[i] for i in same)), dtype)


def _fits_dtype(value: int, dtype: torch.dtype) -> bool:
    if dtype.is_floating_point or dtype in (torch.bool, torch.int64):
        return True
    limits = torch.iinfo(dtype)
    return limits.min <= value <= limits.max


def check_arguments(are_valid: bool, what: str) -> None:
    """Raise ``NotLowered`` for arguments that are an error in eager, as ATen says."""
    if not are_valid:
        raise NotLowered(LoweringFallback.ERROR_IN_ATEN, f"{what} is an error in eager")


def check_fill_value(dtype: torch.dtype, value: Any) -> None:
    """Raise ``NotLowered`` if a fill value may overflow, which raises in ATen."""
    for tensor in lowered_tensors(value):
        if not _holds_all_values(dtype, tensor.dtype):
            reason = f"a fill value of {tensor.dtype} that overflows {dtype} is an error in eager"
            raise NotLowered(LoweringFallback.NUMBER_OUT_OF_RANGE, reason)
    if _overflows(value, dtype):
        raise NotLowered(
            LoweringFallback.NUMBER_OUT_OF_RANGE, f"{value}, which overflows {dtype}, is an error in eager"
        )


@functools.singledispatch
def _overflows(value: Any, dtype: torch.dtype) -> bool:
    """Return True for a number that is too large for a dtype; infinity fits in floats."""
    return False


@_overflows.register(float)
def _(value: float, dtype: torch.dtype) -> bool:
    if dtype == torch.bool or dtype.is_complex:
        return False
    if dtype.is_floating_point:
        return math.isfinite(value) and abs(value) > torch.finfo(dtype).max
    limits = torch.iinfo(dtype)
    return not limits.min <= value <= limits.max


@_overflows.register(int)
def _(value: int, dtype: torch.dtype) -> bool:
    is_unsigned = not (dtype.is_floating_point or dtype.is_complex or dtype.is_signed)
    return _overflows.dispatch(float)(abs(value) if is_unsigned else value, dtype)  # negative numbers wrap around


def _holds_all_values(dtype: torch.dtype, other: torch.dtype) -> bool:
    if dtype == other or torch.bool in (dtype, other) or dtype.is_complex:
        return True
    if other.is_complex or (other.is_floating_point and not dtype.is_floating_point):
        return False
    limits, others = (torch.finfo(d) if d.is_floating_point else torch.iinfo(d) for d in (dtype, other))
    return bool(limits.min <= others.min and others.max <= limits.max)


def broadcast_shape(args: Sequence[Any]) -> tuple[Size, ...]:
    """Return the broadcast shape; of two equal sizes it has the simpler expression."""
    shapes = [a.shape for a in lowered_tensors(list(args))]
    rank = max((len(s) for s in shapes), default=0)
    result: list[Size] = [1] * rank
    for shape in shapes:
        for i, size in enumerate(shape, rank - len(shape)):
            if result[i] == 1 or (size != 1 and _is_simpler(size, result[i])):
                result[i] = size
    return tuple(result)


def _is_simpler(size: Size, than: Size) -> bool:
    """Return True if ``size`` is the simpler of two expressions of the same size."""
    first, second = sympy.sympify(size), sympy.sympify(than)
    return not second.is_Integer and (first.is_Integer or first.count_ops() < second.count_ops())


def check_strided(layout: torch.layout | None) -> None:
    """Raise if a result has another layout than strided.

    Raises:
        NotLowered: the layout is sparse, jagged or of a library.
    """
    if layout not in (None, torch.strided):
        raise NotLowered(LoweringFallback.NO_LOWERING, "a conversion to another layout has no lowering")


def check_supported_dtype(*values: Any) -> None:
    """Reject dtypes that loops do not support.

    Raises:
        NotLowered: for complex, quantized and 8-bit float dtypes.
    """
    for dtype in (*(v.dtype for v in lowered_tensors(values)), *(t.dtype for t in tensors_in(values))):
        if dtype not in SUPPORTED_DTYPES:
            raise NotLowered(LoweringFallback.UNSUPPORTED_DTYPE, f"{str(dtype).removeprefix('torch.')} has no lowering")


def canonical_dim(dim: int, rank: int) -> int:
    """Return the dimension counted from the front; a 0-dim tensor counts as 1-dim.

    Raises:
        NotLowered: it is out of range, which fake tensors do not always say.
    """
    rank = max(rank, 1)
    check_arguments(-rank <= dim < rank, "a dimension out of range")
    return dim % rank
