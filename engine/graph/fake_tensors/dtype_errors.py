"""Dtype errors that eager raises and fake tensors miss.

They are found before the graph runs, so that code before the error is not lost.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch

from engine.errors import named_error_line
from engine.ir.introspection.operator_facts import facts_of
from engine.torch_private.dispatch import DisableTorchDispatch
from engine.torch_private.fake_tensors import FakeTensor
from engine.torch_private.torch_function import DisableTorchFunction

_BITWISE_OPS = frozenset(
    "bitwise_and bitwise_left_shift bitwise_not bitwise_or bitwise_right_shift bitwise_xor".split()
)
_ELEMENTWISE_OPS = _BITWISE_OPS | frozenset(
    "abs absolute add ceil clamp clamp_max clamp_min clip floor fmod frac hardshrink hypot ldexp logit mul multiply pow "
    "relu remainder round rsub sub subtract trunc".split()
)
"""Elementwise operators that reject some dtypes only when they run."""

_PRODUCTS = frozenset("addbmm addmm addmv baddbmm bmm dot inner matmul mm mv".split())
"""Products, which reject operands of different dtypes only when they run."""


class _OperandKind(NamedTuple):
    """The metadata of a tensor or the type of a number, by which operators reject operands."""

    dtype: Any
    dim: int = 0
    device: torch.device | None = None
    """None for a number."""

    @property
    def is_float(self) -> bool:
        """False for integer tensors and bools, which some operators reject."""
        return self.dtype is not bool if self.device is None else self.dtype.is_floating_point

    def example(self) -> Any:
        """Return an operand of this kind with the value 1."""
        if self.device is None:
            return self.dtype(1)
        return torch.ones((1,) * self.dim, dtype=self.dtype, device=self.device)


@functools.singledispatch
def _operand_kind(operand: Any) -> _OperandKind | None:
    """Return the kind of an operand; None if it is neither a plain tensor nor a number."""
    return None


@_operand_kind.register
def _(operand: FakeTensor) -> _OperandKind:
    return _OperandKind(operand.dtype, operand.dim(), operand.device)


for _types in ((bool, torch.SymBool), (int, torch.SymInt), (float, torch.SymFloat)):
    for _type in _types:
        _operand_kind.register(_type, lambda operand, dtype=_types[0]: _OperandKind(dtype))


def dtype_error(target: Any, args: list[Any], kwargs: dict[str, Any]) -> str:
    """Run an operator on one-element tensors; return the dtype error that it raises, or ""."""
    name = facts_of(target).name
    if not args or not (name in _ELEMENTWISE_OPS or name in _PRODUCTS):
        return ""
    kinds = [kind for kind in map(_operand_kind, (*args, *kwargs.values())) if kind is not None]
    if len(kinds) < len(args) + len(kwargs) or kinds[0].device is None:
        return ""
    if not _may_reject(name, kinds):
        return ""
    run = getattr(torch.Tensor, target) if isinstance(target, str) else target
    error = _error_of_kinds(run, tuple(kinds), tuple(kwargs))
    return f"{run.__name__} raises {error}" if error else ""


def _may_reject(name: str, kinds: Sequence[_OperandKind]) -> bool:
    """Return False where an operator accepts operands of these kinds for sure."""
    if name in _PRODUCTS:  # autocast converts operands first
        dtypes = {kind.dtype for kind in kinds if kind.device is not None}
        return len(dtypes) > 1 and not any(torch.is_autocast_enabled(device) for device in ("cpu", "cuda"))
    return name in _BITWISE_OPS or not all(kind.is_float for kind in kinds)


@functools.cache
def _error_of_kinds(run: Callable[..., Any], kinds: tuple[_OperandKind, ...], keywords: tuple[str, ...]) -> str:
    """Return torch's error for operands of these kinds, or "" if it accepts them.

    The last operands are passed by keyword.
    """
    devices = {kind.device.type for kind in kinds if kind.device is not None}
    if not all(d == "cpu" or (d == "cuda" and torch.cuda.is_available()) for d in devices):
        return ""
    operands = [kind.example() for kind in kinds]
    split = len(operands) - len(keywords)
    with torch.no_grad(), DisableTorchDispatch(), DisableTorchFunction():
        try:
            run(*operands[:split], **dict(zip(keywords, operands[split:], strict=True)))
        except (RuntimeError, TypeError) as error:
            return named_error_line(error)
    return ""
