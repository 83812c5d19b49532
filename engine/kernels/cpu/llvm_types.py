"""LLVM types and constants of values and of memory."""

from __future__ import annotations

import math
import struct
from collections.abc import Sequence

import torch

SCALAR_TYPES = {
    torch.float32: "float",
    torch.float64: "double",
    torch.int8: "i8",
    torch.int16: "i16",
    torch.int32: "i32",
    torch.int64: "i64",
    torch.uint8: "i8",
    torch.bool: "i1",
}
"""Type of a value, by its compute dtype."""
MEMORY_TYPES = {**SCALAR_TYPES, torch.bool: "i8", torch.float16: "half", torch.bfloat16: "i16"}
"""Type of an element in memory. bfloat16 is an integer: conversions round explicitly."""
_SUFFIXES = {"float": "f32", "double": "f64", "half": "f16"}


class NotPrintable(Exception):
    """The CPU printer has no code for an op; ATen computes the results of its nodes."""

    def __init__(self, text: str, nodes: Sequence[str] = ()) -> None:
        self.nodes = nodes
        """Ids of the ATen nodes of the op; empty if they are unknown."""
        super().__init__(text)


def value_type(dtype: torch.dtype) -> str:
    """Return the scalar type of a compute dtype.

    Raises:
        NotPrintable: CPU kernels do not support the dtype.
    """
    if dtype not in SCALAR_TYPES:
        raise NotPrintable(f"{dtype} has no CPU kernels")
    return SCALAR_TYPES[dtype]


def wide(scalar: str, lanes: int) -> str:
    """Return the type of a vector with this number of lanes; one lane is a scalar."""
    return scalar if lanes == 1 else f"<{lanes} x {scalar}>"


def type_suffix(scalar: str, lanes: int) -> str:
    """Return the suffix of an intrinsic: ``v16f32``, ``i64``."""
    name = _SUFFIXES.get(scalar, scalar)
    return name if lanes == 1 else f"v{lanes}{name}"


def splat(scalar: str, literal: str, lanes: int) -> str:
    """Return a constant with this number of equal lanes, without its type."""
    return literal if lanes == 1 else f"splat ({scalar} {literal})"


def word_constant(lanes: int, value: int) -> str:
    """Return a 32-bit integer in each of the lanes, without its type."""
    return splat("i32", str(value), lanes)


def float_constant(lanes: int, value: float) -> str:
    """Return a float32 in each of the lanes, without its type."""
    return splat("float", literal(value, torch.float32), lanes)


def literal(value: bool | float, dtype: torch.dtype) -> str:
    """Return a constant of a compute dtype; floats as the bits of a double."""
    if dtype == torch.bool:
        return "true" if value else "false"
    if not dtype.is_floating_point:
        return str(int(value))
    number = float(value)
    if dtype == torch.float32 and math.isfinite(number):
        number = float(torch.tensor(number, dtype=torch.float32, device="cpu"))
    return f"0x{struct.unpack('<Q', struct.pack('<d', number))[0]:016X}"


def iota(lanes: int, scalar: str = "i64", step: int = 1, start: int = 0) -> str:
    """Return the constant vector ``start, start + step, ...``, without its type."""
    return "<" + ", ".join(f"{scalar} {start + k * step}" for k in range(lanes)) + ">"
