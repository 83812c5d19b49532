"""Constants read from real objects, with the guards they take."""

from __future__ import annotations

import datetime as dt
import enum
import importlib.util
import sys
from typing import TYPE_CHECKING, Any

import torch

from engine.ir.exact import is_placement
from engine.ir.origin import Origin
from engine.ir.value_guard import Equals
from engine.trace.values.base import Const, Value
from engine.trace.values.symbolic import symbolic_number
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
    return _literal(tx, real, origin)


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
