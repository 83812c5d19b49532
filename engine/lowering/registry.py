"""The table of lowerings: which function turns which ATen operator into loops, and what those functions work with."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

LoweringResult = Any
"""A Tensor, a Python value or size, or a tuple of those."""


class NotLowered(Exception):
    """This call has no lowering after all; the message is the recorded reason, and ATen runs it."""


LoweringFn = Callable[..., LoweringResult]


LOWERINGS: dict[Any, LoweringFn] = {}


COMPLEX_LOWERINGS: dict[Any, LoweringFn] = {}
"""Lowerings for calls that take or give complex tensors."""


def register_lowering(*operators: Any) -> Callable[[LoweringFn], LoweringFn]:
    """Register a lowering ``fn(low, *args, **kwargs)`` for operators (overloads). Names registered twice are an error."""

    def register(fn: LoweringFn) -> LoweringFn:
        for operator in operators:
            if operator in LOWERINGS:
                raise ValueError(f"{operator} already has a lowering")
            LOWERINGS[operator] = fn
        return fn

    return register


def register_complex_lowering(*operators: Any) -> Callable[[LoweringFn], LoweringFn]:
    """Register a lowering of operators for complex tensors."""

    def register(fn: LoweringFn) -> LoweringFn:
        for operator in operators:
            if operator in COMPLEX_LOWERINGS:
                raise ValueError(f"{operator} already has a lowering for complex numbers")
            COMPLEX_LOWERINGS[operator] = fn
        return fn

    return register
