"""Dtype errors that eager raises and fake tensors miss.

They are found while tracing, so that code before the error is not lost.
"""

from __future__ import annotations

import functools
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor

from engine.ir.introspection.operator_facts import facts_of
from engine.trace.exc import SkipFrame

_BITWISE_OPS = frozenset(
    "bitwise_and bitwise_left_shift bitwise_not bitwise_or bitwise_right_shift bitwise_xor".split()
)
_ELEMENTWISE_OPS = _BITWISE_OPS | frozenset(
    "abs absolute ceil clamp clamp_max clamp_min clip floor fmod frac hypot ldexp logit mul multiply pow relu remainder "
    "round rsub sub subtract trunc".split()
)
"""Elementwise operators that reject some dtypes only when they run."""


def check_dtypes(target: Any, args: list[Any], kwargs: dict[str, Any]) -> None:
    """Run an operator on one-element tensors to find dtype errors.

    Raises:
        SkipFrame: the operator rejects these dtypes.
    """
    name = facts_of(target).name
    if name not in _ELEMENTWISE_OPS or kwargs or not args or not isinstance(args[0], torch.Tensor):
        return
    tensors = [a for a in args if isinstance(a, torch.Tensor)]
    has_floats_only = all(t.is_floating_point() for t in tensors) and not any(isinstance(a, bool) for a in args)
    if (has_floats_only and name not in _BITWISE_OPS) or any(type(t) is not FakeTensor for t in tensors):
        return
    kinds = tuple((a.dtype, a.dim(), a.device) if isinstance(a, torch.Tensor) else _example_number(a) for a in args)
    if None not in kinds:
        refusal = _dtype_error(target, kinds)
        if refusal:
            shown = target if isinstance(target, str) else target.__name__
            raise SkipFrame("raises", f"{shown} raises {refusal}")


def _example_number(value: Any) -> Any:
    """Return a number of the same type, which promotes alike; None if it is no plain number."""
    return type(value)(1) if type(value) in (bool, int, float) else None


@functools.cache
def _dtype_error(target: Any, kinds: tuple[Any, ...]) -> str:
    """Return torch's error for operands of these types, or "" if it accepts them."""
    devices = {kind[2].type for kind in kinds if isinstance(kind, tuple)}
    if not all(d == "cpu" or (d == "cuda" and torch.cuda.is_available()) for d in devices):
        return ""
    with torch.no_grad(), torch._C._DisableTorchDispatch(), torch._C.DisableTorchFunction():
        made = [torch.ones((1,) * k[1], dtype=k[0], device=k[2]) if isinstance(k, tuple) else k for k in kinds]
        try:
            if isinstance(target, str):
                getattr(made[0], target)(*made[1:])
            else:
                target(*made)
        except (RuntimeError, TypeError) as error:
            return f"{type(error).__name__}: {str(error).splitlines()[0]}"
    return ""
