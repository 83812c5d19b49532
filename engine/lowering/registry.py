"""Registry of lowerings: maps each ATen operator to the function that builds its loop IR."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from engine.ir.register_once import register_once

LoweringResult = Any
"""A ``LoweredTensor``, a Python value, a size, or a tuple of those."""


LoweringFn = Callable[..., LoweringResult]


LOWERINGS: dict[Any, LoweringFn] = {}


COMPLEX_LOWERINGS: dict[Any, LoweringFn] = {}
"""Lowerings of calls that take or return complex tensors."""


def register_lowering(*operators: Any) -> Callable[[LoweringFn], LoweringFn]:
    """Register a lowering ``fn(low, *args, **kwargs)`` for operator overloads.

    Raises:
        ValueError: an overload already has a lowering.
    """
    return register_once(LOWERINGS, operators, "a lowering")


def register_complex_lowering(*operators: Any) -> Callable[[LoweringFn], LoweringFn]:
    """Register a lowering of operators on complex tensors.

    Raises:
        ValueError: an overload already has one.
    """
    return register_once(COMPLEX_LOWERINGS, operators, "a lowering for complex numbers")
