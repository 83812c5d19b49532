"""Mutable globals and closure state that a user-defined backward reads.

The state may change after the call, so it must be read when the backward runs.
"""

from __future__ import annotations

import dis
import enum
import functools
import types
from collections.abc import Iterable, Iterator
from typing import Any

import torch

from engine.trace.frame import is_trusted_module

_EMPTY_CELL = types.CellType()
_VALUE_TYPES = (
    *(bool, int, float, complex, str, bytes, type(None), type(...), enum.Enum),
    *(torch.dtype, torch.device, torch.layout, torch.Tensor),
)
"""Types of tensors and immutable objects, whose variable may still be reassigned."""
_DESCRIPTOR_TYPES = (
    *(classmethod, staticmethod, property, functools.partial),
    *(types.BuiltinFunctionType, types.MethodDescriptorType, types.MemberDescriptorType),
)


class _Capture(enum.Enum):
    """Kind of an object that a backward reads, by what may change in it."""

    FUNCTION = "its code and what it reads"
    NAMESPACE = "the attributes of a class or module"
    VALUE = "nothing but the variable that holds it"
    DESCRIPTOR = "nothing: a C function, or a descriptor of a class"
    MUTABLE = "its contents"


@functools.singledispatch
def _kind_of(real: Any) -> _Capture:
    is_trusted = callable(real) and is_trusted_module(type(real).__module__)
    return _Capture.DESCRIPTOR if is_trusted else _Capture.MUTABLE


@_kind_of.register(tuple)
@_kind_of.register(frozenset)
def _(real: Iterable[Any]) -> _Capture:
    return _Capture.MUTABLE if any(map(is_mutable_state, real)) else _Capture.VALUE


def _register_kind(kind: _Capture, *held_types: type) -> None:
    for cls in held_types:
        _kind_of.register(cls, lambda real: kind)


_register_kind(_Capture.FUNCTION, types.FunctionType)
_register_kind(_Capture.NAMESPACE, type, types.ModuleType)
_register_kind(_Capture.VALUE, *_VALUE_TYPES)
_register_kind(_Capture.DESCRIPTOR, *_DESCRIPTOR_TYPES)


def find_mutable_capture(functions: Iterable[Any]) -> str:
    """Return the name of mutable state that the functions or their callees read, or "".

    A number or a tensor counts if a closure cell holds it, or if code of its module reassigns the global.
    """
    visited: set[int] = set()
    todo = list(functions)
    while todo:
        function = todo.pop()
        code = getattr(function, "__code__", None)
        if code is None or id(code) in visited:
            continue
        visited.add(id(code))
        names = names_read_by(code)
        cells = zip(code.co_freevars, function.__closure__ or (), strict=True)
        reads: list[tuple[str, Any, bool]] = [(n, c.cell_contents, True) for n, c in cells if c != _EMPTY_CELL]
        reads += [(n, function.__globals__[n], False) for n in sorted(names) if n in function.__globals__]
        for name, real, is_cell in reads:
            match _kind_of(real):
                case _Capture.FUNCTION if not is_trusted_module(real.__module__):
                    todo.append(real)
                case _Capture.NAMESPACE if attribute := _find_mutable_attribute(real, names):
                    return f"{name}.{attribute}"
                case _Capture.MUTABLE:
                    return name
                case _Capture.VALUE if is_cell or _is_reassigned_in_module(name, function.__globals__):
                    return name
    return ""


def is_mutable_state(real: Any) -> bool:
    """Return True if the contents of an object may change."""
    return _kind_of(real) is _Capture.MUTABLE


def names_read_by(code: types.CodeType) -> set[str]:
    """Return the names of globals and attributes that the code and its nested code read."""
    return set().union(*(inner.co_names for inner in _with_nested_code(code)))


def _with_nested_code(code: types.CodeType) -> Iterator[types.CodeType]:
    yield code
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _with_nested_code(constant)


def _find_mutable_attribute(owner: Any, names: set[str]) -> str:
    """Return the name of a mutable attribute of a class or module, or "".

    Only attributes among ``names`` that hold data count, not functions or descriptors.
    """
    is_class = isinstance(owner, type)
    home: str = owner.__module__ if is_class else owner.__name__
    if is_trusted_module(home) or (is_class and issubclass(owner, enum.Enum)):
        return ""
    spaces = [vars(c) for c in owner.__mro__ if not is_trusted_module(c.__module__)] if is_class else [vars(owner)]
    for name in sorted(names):
        real = next((space[name] for space in spaces if name in space), torch)
        if not name.startswith("__") and _kind_of(real) in (_Capture.VALUE, _Capture.MUTABLE):
            return name
    return ""


_STORE_GLOBAL_OPCODES = (dis.opmap["STORE_GLOBAL"], dis.opmap["DELETE_GLOBAL"])


def _is_reassigned_in_module(name: str, space: dict[str, Any]) -> bool:
    """Return True if a function or method of the module assigns the global ``name``."""
    real = [v for v in space.values() if getattr(v, "__module__", None) == space.get("__name__")]
    return any(_stores_global(code, name) for value in real for code in _code_objects_of(value))


def _code_objects_of(value: Any) -> Iterator[types.CodeType]:
    members = vars(value).values() if _kind_of(value) is _Capture.NAMESPACE else ()
    for inner in (*members, value):
        code = getattr(getattr(inner, "__func__", inner), "__code__", None)
        if isinstance(code, types.CodeType):
            yield from _with_nested_code(code)


def _stores_global(code: types.CodeType, name: str) -> bool:
    if name not in code.co_names:
        return False
    name_index, units = code.co_names.index(name) & 0xFF, code.co_code
    return any(units[k] in _STORE_GLOBAL_OPCODES and units[k + 1] == name_index for k in range(0, len(units), 2))
