"""Mutable globals and closure state that a user-defined backward reads.

The state may change after the call, so it must be read when the backward runs.
"""

from __future__ import annotations

import dis
import enum
import functools
import types
from typing import TYPE_CHECKING, Any

import torch

from engine.trace.frame import is_trusted_module

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

_EMPTY_CELL = types.CellType()
_IMMUTABLE_TYPES = (
    bool,
    int,
    float,
    complex,
    str,
    bytes,
    type(None),
    type(...),
    enum.Enum,
    torch.dtype,
    torch.device,
    torch.layout,
)
"""Types of immutable objects; only the variable that holds one can be reassigned."""


def find_mutable_capture(functions: Iterable[Any]) -> str:
    """Return the name of mutable state that the functions or their callees read, or "".

    A number or a tensor counts if a closure cell holds it, or if code of its module reassigns the global.
    """
    seen: set[int] = set()
    todo = list(functions)
    while todo:
        function = todo.pop()
        code = getattr(function, "__code__", None)
        if code is None or id(code) in seen:
            continue
        seen.add(id(code))
        names = names_read_by(code)
        cells = zip(code.co_freevars, function.__closure__ or (), strict=True)
        read: list[tuple[str, Any, bool]] = [(n, c.cell_contents, True) for n, c in cells if c != _EMPTY_CELL]
        read += [(n, function.__globals__[n], False) for n in sorted(names) if n in function.__globals__]
        for name, held, is_cell in read:
            if isinstance(held, types.FunctionType):
                if not is_trusted_module(held.__module__):
                    todo.append(held)
            elif isinstance(held, (type, types.ModuleType)):
                attribute = _find_mutable_attribute(held, names)
                if attribute:
                    return f"{name}.{attribute}"
            elif is_mutable_state(held) or (
                _is_immutable_or_tensor(held) and (is_cell or _is_reassigned_in_module(name, function.__globals__))
            ):
                return name
    return ""


def is_mutable_state(held: Any) -> bool:
    """Return True if the contents of an object may change."""
    if isinstance(held, (tuple, frozenset)):
        return any(map(is_mutable_state, held))
    if isinstance(held, (*_IMMUTABLE_TYPES, type, types.ModuleType, types.FunctionType, types.BuiltinFunctionType)):
        return False
    return not isinstance(held, torch.Tensor) and not (callable(held) and is_trusted_module(type(held).__module__))


def names_read_by(code: types.CodeType) -> set[str]:
    """Return the names of globals and attributes that the code and its nested code read."""
    inner = (c for c in code.co_consts if isinstance(c, types.CodeType))
    return set(code.co_names).union(*map(names_read_by, inner))


def _is_immutable_or_tensor(held: Any) -> bool:
    return isinstance(held, (*_IMMUTABLE_TYPES, torch.Tensor)) or (
        isinstance(held, (tuple, frozenset)) and not is_mutable_state(held)
    )


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
        held = next((space[name] for space in spaces if name in space), torch)
        if (
            not name.startswith("__")
            and (_is_immutable_or_tensor(held) or is_mutable_state(held))
            and not isinstance(held, _DESCRIPTOR_TYPES)
        ):
            return name
    return ""


_DESCRIPTOR_TYPES = (
    classmethod,
    staticmethod,
    property,
    functools.partial,
    types.MethodDescriptorType,
    types.MemberDescriptorType,
)
_STORE_GLOBAL_OPCODES = (dis.opmap["STORE_GLOBAL"], dis.opmap["DELETE_GLOBAL"])


def _is_reassigned_in_module(name: str, space: dict[str, Any]) -> bool:
    """Return True if a function or method of the module assigns the global ``name``."""
    held = [v for v in space.values() if getattr(v, "__module__", None) == space.get("__name__")]
    return any(_stores_global(code, name) for value in held for code in _code_objects_of(value))


def _code_objects_of(value: Any) -> Iterator[types.CodeType]:
    for inner in (*vars(value).values(), value) if isinstance(value, type) else (value,):
        code = getattr(getattr(inner, "__func__", inner), "__code__", None)
        if isinstance(code, types.CodeType):
            yield code


def _stores_global(code: types.CodeType, name: str) -> bool:
    if any(_stores_global(c, name) for c in code.co_consts if isinstance(c, types.CodeType)):
        return True
    if name not in code.co_names:
        return False
    place, units = code.co_names.index(name) & 0xFF, code.co_code
    return any(units[k] in _STORE_GLOBAL_OPCODES and units[k + 1] == place for k in range(0, len(units), 2))
