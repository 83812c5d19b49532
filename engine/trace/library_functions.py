"""Builtins and library functions that user code called, guarded against replacement."""

from __future__ import annotations

import types
from typing import Any

from engine.ir.guards.base import Cause
from engine.ir.guards.library_functions import LibraryFunction, LibraryFunctionsMatch
from engine.ir.sources.base import GlobalsNamespace
from engine.trace.annotations import Tracer


class LibraryFunctions:
    """Functions and classes of builtins and trusted modules that the user's own frames read."""

    def __init__(self) -> None:
        self.read: dict[tuple[GlobalsNamespace, str], LibraryFunction] = {}
        self.cause: Cause | None = None

    def record(self, tx: Tracer, namespace: GlobalsNamespace, name: str, real: Any) -> None:
        """Record a read by the user's code. Reads by library code, and of modules, do not count."""
        if tx.call_stack.frames[-1].is_trusted or isinstance(real, types.ModuleType):
            return
        self.cause = self.cause or tx.guard_cause("it was called")
        self.read[namespace, name] = LibraryFunction(namespace, name, real)

    def add_guard(self, tx: Tracer) -> None:
        """Guard all of them at once."""
        if self.cause is not None:
            tx.guards.add(LibraryFunctionsMatch.of(tuple(self.read.values()), self.cause))
