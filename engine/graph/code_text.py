"""What Python functions do, as data: equal where their bytecode and all that it reads is equal, in any process."""

from __future__ import annotations

import builtins
import dis
import functools
import itertools
import sys
import types
from collections.abc import Callable, Iterator
from typing import Any

Data = Any
_BY_VERSION = frozenset(
    "torch math cmath operator functools itertools collections typing typing_extensions numbers contextlib dataclasses enum".split()
)
"""Modules that are the same where the versions are, and that keep no state of the process: what is found there is known by its name."""
_OF_PYTHON = frozenset("builtins _operator _functools _collections".split())
_PLACES = ("torch", "torch._C._nn", "torch.nn.functional", "torch._C", "torch.special", "torch.linalg", "torch.fft")
"""Where else torch shows what it does not say the place of."""
_UNFOLLOWED = frozenset("globals locals vars eval exec compile __import__ open input getattr setattr delattr".split())
_WRITES = frozenset("STORE_GLOBAL DELETE_GLOBAL STORE_NAME DELETE_NAME".split())
_ATTRIBUTES = frozenset({"LOAD_ATTR", "LOAD_METHOD"})


class NotFollowed(Exception):
    """What a function does cannot be told from its code; the text says why."""


def described(function: Any, plainly: Callable[[Any], Data]) -> Data:
    """A function, and whatever its code reads, as JSON. ``plainly`` writes values that are no functions, and raises for what it does not know.

    Raises:
        NotFollowed: it reads something that is not known by its text, as a module with state, an object or a class of the user's own.
    """
    return _Description(plainly).of(function, "it")


class _Description:
    """One walk over what a function reads; what was met before is a number, so that recursion ends."""

    def __init__(self, plainly: Callable[[Any], Data]) -> None:
        self.plainly = plainly
        self.met: dict[int, int] = {}
        self.held: list[Any] = []

    def of(self, value: Any, name: str) -> Data:
        if known := known_by_name(value):
            return {"named": known}
        if isinstance(value, (staticmethod, classmethod)):
            return {type(value).__name__: self.of(value.__func__, name)}
        if isinstance(value, functools.partial):
            return {"partial": [self.of(v, name) for v in (value.func, value.args, value.keywords)]}
        if type(value) in (tuple, list):
            return [self.of(v, name) for v in value]
        if type(value) is dict and all(type(k) is str for k in value):
            return {"dict": [[k, self.of(v, f"{name}[{k!r}]")] for k, v in value.items()]}
        if isinstance(value, types.FunctionType):
            return self._function(value)
        if isinstance(value, types.ModuleType):
            raise NotFollowed(f"it reads the module {value.__name__}")
        if isinstance(value, type):
            raise NotFollowed(f"it uses the class {value.__qualname__}")
        try:
            return self.plainly(value)
        except NotFollowed as error:
            raise NotFollowed(f"it reads {name}, and {error}") from None

    def _function(self, function: types.FunctionType) -> Data:
        if id(function) in self.met:
            return {"again": self.met[id(function)]}
        self.met[id(function)] = len(self.met)
        self.held.append(function)
        code = function.__code__
        held = {k: v for k, v in vars(function).items() if k != "__wrapped__"}
        cells = zip(code.co_freevars, function.__closure__ or (), strict=True)
        return {
            "code": _code(code, self),
            "defaults": self.of([function.__defaults__, function.__kwdefaults__], "a default"),
            "cells": [[n, self.of(_content(c, n), n)] for n, c in cells],
            "attributes": self.of(held, f"an attribute of {function.__name__}"),
            "reads": [[".".join(path), self._read(function, path)] for path in sorted(set(_read_by(code)))],
        }

    def _read(self, function: types.FunctionType, path: tuple[str, ...]) -> Data:
        """What a global name is, or the attribute of a module that is read through it."""
        name, *rest = path
        space = function.__globals__
        if name not in space:
            if name in _UNFOLLOWED:
                raise NotFollowed(f"it calls {name}()")
            return {"builtin": hasattr(builtins, name)}
        value: Any = space[name]
        place = ""
        for part in rest:
            if not isinstance(value, types.ModuleType):
                break
            value, place = getattr(value, part, None), value.__name__
        root = place.partition(".")[0]
        if isinstance(value, types.ModuleType) and value.__name__.partition(".")[0] in _BY_VERSION:
            return {"module": value.__name__}
        if root in _BY_VERSION and isinstance(value, (types.BuiltinFunctionType, types.MethodDescriptorType)):
            return {"named": ".".join(path)}
        return self.of(value, ".".join(path))


def _content(cell: types.CellType, name: str) -> Any:
    try:
        return cell.cell_contents
    except ValueError:
        raise NotFollowed(f"{name} has no value yet") from None


def _code(code: types.CodeType, walk: _Description) -> Data:
    constants = [_code(c, walk) if isinstance(c, types.CodeType) else _constant(c, walk) for c in code.co_consts]
    counts = [code.co_argcount, code.co_posonlyargcount, code.co_kwonlyargcount, code.co_flags]
    names = [code.co_names, code.co_varnames, code.co_freevars, code.co_cellvars]
    return [code.co_code.hex(), code.co_exceptiontable.hex(), constants, counts, [list(n) for n in names]]


def _constant(value: Any, walk: _Description) -> Data:
    return {"bytes": value.hex()} if isinstance(value, bytes) else walk.plainly(value)


def _read_by(code: types.CodeType) -> Iterator[tuple[str, ...]]:
    """The global names that code reads, with the attributes that follow in the same breath."""
    before: tuple[str, ...] = ()
    for op in dis.get_instructions(code):
        if op.opname in _WRITES:
            raise NotFollowed(f"it assigns to {op.argval} outside of itself")
        if op.opname == "IMPORT_NAME":
            if str(op.argval).partition(".")[0] not in _BY_VERSION:
                raise NotFollowed(f"it imports {op.argval}")
        elif op.opname in ("LOAD_GLOBAL", "LOAD_NAME"):
            before = (str(op.argval),)
            yield before
            continue
        elif before and op.opname in _ATTRIBUTES:
            before = (*before, str(op.argval))
            yield before
            continue
        if op.opname not in ("PRECALL", "CACHE", "EXTENDED_ARG"):
            before = ()
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _read_by(constant)


def known_by_name(value: Any) -> str:
    """The name that a function or class of Python or torch has in every process of these versions; empty when it has none."""
    names = [n for n in (getattr(value, k, None) for k in ("__name__", "__qualname__")) if isinstance(n, str)]
    module = getattr(value, "__module__", None) or "torch"
    if not names or (module.partition(".")[0] not in _BY_VERSION and module not in _OF_PYTHON):
        return ""
    return next((f"{p}:{n}" for p, n in itertools.product((module, *_PLACES), names) if _at(p, n) is value), "")


def _at(place: str, name: str) -> Any:
    found: Any = sys.modules.get(place)
    for part in name.split("."):
        found = getattr(found, part, None)
    return found
