"""Texts of CPython's errors that Python 3.14 changed."""

from __future__ import annotations

from typing import Any

from engine.bytecode.opcodes import VERSION
from engine.trace.annotations import Tracer
from engine.trace.exc import UserException
from engine.trace.variables.base import Variable, full_type_name

IS_3_14 = VERSION >= (3, 14)


def dict_key(tx: Tracer, key: Variable) -> Any:
    """Return the hash key of a dict key; since 3.14 the error names the class and the use."""
    return _hash_key(tx, key, "a dict key")


def set_element(tx: Tracer, item: Variable) -> Any:
    """Return the hash key of a set element; since 3.14 the error names the class and the use."""
    return _hash_key(tx, item, "a set element")


def _hash_key(tx: Tracer, value: Variable, use: str) -> Any:
    if not IS_3_14:
        return value.hash_key(tx)
    try:
        return value.hash_key(tx)
    except UserException as error:
        if error.exception.python_type() is not TypeError:
            raise
        text = error.exception.call_method(tx, "__str__", [], {}).as_python_constant(tx)
    return tx.raise_type_error(f"cannot use '{full_type_name(value.python_type())}' as {use} ({text})")


def too_many_values(expected: int, found: int, cls: type) -> str:
    """Return the text for a sequence that is too long to be unpacked."""
    shown = f", got {found}" if IS_3_14 and cls in (list, tuple, dict) else ""
    return f"too many values to unpack (expected {expected}{shown})"


def set_to_none_as_bool(cls: type) -> str:
    """Return the text for the truth of an object whose class has ``__bool__ = None``."""
    return f"'{cls.__name__}' cannot be interpreted as a boolean" if IS_3_14 else "'NoneType' object is not callable"
