"""The guards that tracing has installed so far, without duplicates."""

from __future__ import annotations

from contextlib import suppress
from types import ModuleType
from typing import Any

from engine.ir.guards.aliasing import SameObject
from engine.ir.guards.base import Cause, Guard
from engine.ir.guards.library_functions import LibraryFunction, LibraryFunctionsMatch
from engine.ir.guards.python_values import CodeMatch, EqualsMatch, IdMatch, TypeMatch
from engine.ir.sources.base import MISSING, GlobalsNamespace
from engine.trace.annotations import Tracer

_IMPLIED_BY_IDENTITY = (TypeMatch, IdMatch, CodeMatch, EqualsMatch)
"""Guards that cannot fail on an object which the compiled code itself holds."""


class GuardSet:
    """Guards in the order in which they were added, without duplicates."""

    def __init__(self, guards: tuple[Guard, ...] = ()) -> None:
        self._guards: dict[Any, Guard] = {_guard_key(g): g for g in guards}
        self._library_functions: dict[tuple[Any, str], LibraryFunction] = {}
        """Functions and classes of builtins and trusted modules that the user's own frames read."""
        self._library_cause: Cause | None = None

    def add(self, guard: Guard) -> None:
        """Add a guard unless an equivalent one exists, or it cannot fail."""
        if guard.source.is_fixed and isinstance(guard, _IMPLIED_BY_IDENTITY):
            return
        self._guards.setdefault(_guard_key(guard), guard)

    def record_library_function(self, tx: Tracer, namespace: GlobalsNamespace, name: str, real: Any) -> None:
        """Record a builtin or library function that is read, to guard its replacement.

        Reads by library code, and of modules, do not count.
        """
        if tx.frame.is_trusted or isinstance(real, ModuleType):
            return
        self._library_cause = self._library_cause or tx.guard_cause("it was called")
        self._library_functions[namespace, name] = LibraryFunction(namespace, name, real)

    def record_class_attribute(self, tx: Tracer, cls: type, name: str) -> None:
        """Record a read of a library class's attribute, to guard that it does not change."""
        if tx.frame.is_trusted:
            return
        self._library_cause = self._library_cause or tx.guard_cause("it was read")
        for base in cls.__mro__:
            entry = vars(base).get(name, MISSING)
            namespace = GlobalsNamespace(vars(base), base.__qualname__)
            self._library_functions[base, name] = LibraryFunction(namespace, name, entry)
            if entry is not MISSING:
                return

    def add_library_functions(self) -> None:
        """Add one guard on all recorded library functions."""
        if self._library_cause is not None:
            self.add(LibraryFunctionsMatch.of(tuple(self._library_functions.values()), self._library_cause))

    def __len__(self) -> int:
        return len(self._guards)

    def all(self) -> tuple[Guard, ...]:
        """Return all guards in order."""
        return tuple(self._guards.values())

    def since(self, count: int) -> list[Guard]:
        """Return the guards added after the first ``count``."""
        return list(self._guards.values())[count:]


def _guard_key(guard: Guard) -> Any:
    match guard:
        case SameObject():
            return SameObject, guard.source, guard.other
        case TypeMatch() | CodeMatch() | EqualsMatch() | IdMatch():
            return type(guard), guard.source
        case _:
            with suppress(TypeError):
                hash(guard)
                return guard
            return type(guard), guard.source, repr(guard)
