"""Constants read from real objects, with the guards they take."""

from __future__ import annotations

import datetime as dt
import enum
import importlib.util
import sys
from typing import TYPE_CHECKING, Any

import torch

from engine.ir.exact import is_placement
from engine.ir.origin import Asked, Origin
from engine.ir.value_guard import Equals, is_numpy_number
from engine.trace.values.base import Const, Value
from engine.trace.values.symbolic import is_changing, symbolic_number
from engine.trace.values.wrap import wraps, wraps_if

if TYPE_CHECKING:
    from engine.trace.state import Tracer

DATES = (dt.date, dt.time, dt.datetime, dt.timedelta, dt.timezone)
"""Immutable objects of the standard library."""

if importlib.util.find_spec("numpy") is None:
    _NUMPY: tuple[type, ...] = ()
    _LIMITS: tuple[type, ...] = ()
else:
    import numpy as np

    _NUMPY = (np.dtype, np.number, np.bool_)
    _LIMITS = (np.iinfo, np.finfo)

LITERALS = frozenset(
    (
        *DATES,
        *_LIMITS,
        int,
        float,
        complex,
        bool,
        str,
        bytes,
        type(None),
        type(Ellipsis),
        type(NotImplemented),
        torch.dtype,
        torch.device,
        torch.layout,
        torch.memory_format,
        torch.finfo,
        torch.iinfo,
        torch._C.DispatchKeySet,
        type(sys.version_info),
        type(sys.flags),
        type(sys.float_info),
        type(sys.int_info),
        type(sys.hash_info),
    )
)


def is_enum_member(value: Any) -> bool:
    """Whether it is a member of an enumeration, or a number or type of numpy's."""
    return isinstance(value, (enum.Enum, *_NUMPY)) or (
        type(type(value)).__name__ == "pybind11_type" and isinstance(getattr(type(value), "__members__", None), dict)
    )


@wraps(
    *DATES,
    complex,
    str,
    bytes,
    bool,
    torch.dtype,
    torch.device,
    torch.layout,
    torch.memory_format,
    torch.finfo,
    torch.iinfo,
    torch._C.DispatchKeySet,
)
def _literal(tx: Tracer, real: Any, origin: Origin) -> Value:
    why = f"its value ({_short(real)}) decided what was traced"
    tx.guard(Equals(origin, real, cause=tx.cause(why)))
    return Const(real, origin)


@wraps(int, float)
def _number(tx: Tracer, real: float, origin: Origin) -> Value:
    return symbolic_number(tx, real, origin) or _literal(tx, real, origin)


@wraps(
    type(None),
    type(Ellipsis),
    type(NotImplemented),
    type(torch.__version__),
    type(sys.version_info),
    type(sys.flags),
    type(sys.float_info),
    type(sys.int_info),
    type(sys.hash_info),
    *_LIMITS,
)
def _singleton(tx: Tracer, real: Any, origin: Origin) -> Value:
    tx.guard_object(real, origin, f"that it is {real!r} decided what was traced")
    return Const(real, origin)


@wraps_if(9, lambda real: isinstance(real, _NUMPY))
def _numpy_literal(tx: Tracer, real: Any, origin: Origin) -> Value:
    if is_numpy_number(real) and is_changing(tx, origin):
        return ChangingNumber(tx, real, origin)
    return _literal(tx, real, origin)


class ChangingNumber(Const):
    """A number of numpy's that was seen to change: a symbol beside tensors, to which it is Python's number; a constant wherever else it is looked at."""

    __slots__ = ("_is_settled", "_number", "_real", "_tx")

    def __init__(self, tx: Tracer, real: Any, origin: Origin) -> None:
        self._tx = tx
        self._real = real
        self._is_settled = False
        self._number: Value | None = None
        self.origin = origin
        tx.guard_type(real, origin, f"it is a number of type {type(real).__name__} whose value was seen to change")

    @property
    def value(self) -> Any:
        """The number, which is taken for granted from here on."""
        if not self._is_settled:
            self._is_settled = True
            assert self.origin is not None
            why = f"its value ({_short(self._real)}) decided what was traced"
            self._tx.guard(Equals(self.origin, self._real, cause=self._tx.cause(why)))
        return self._real

    def type(self) -> type:
        return type(self._real)

    def describe(self) -> str:
        return repr(self._real)

    def beside_tensor(self, tx: Tracer) -> Value:
        """The same number as a symbol; as a constant where it is known already, or no symbol can stand for it."""
        if self._number is None and not self._is_settled:
            assert self.origin is not None
            origin = Asked(self.origin, "item")
            tx.changing.add(origin)
            self._number = symbolic_number(tx, self._real.item(), origin)
        return self if self._number is None else self._number

    def graph_arg(self, tx: Tracer) -> tuple[Any, Any]:
        number = self.beside_tensor(tx)
        return super().graph_arg(tx) if number is self else number.graph_arg(tx)


@wraps_if(39, is_placement)
def _placement(tx: Tracer, real: Any, origin: Origin) -> Value:
    return _literal(tx, real, origin)


@wraps_if(10, is_enum_member)
def _enum(tx: Tracer, real: Any, origin: Origin) -> Value:
    tx.guard_object(real, origin, f"its value ({real!s}) decided what was traced")
    return Const(real, origin)


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 40 else text[:37] + "..."
