"""State that belongs to a thread or context: locks, thread locals and context variables."""

from __future__ import annotations

import builtins
import contextvars
import threading
from typing import Any

from engine.frame_code.codegen_runtime.objects import new_thread_local
from engine.ir.guards.python_values import IdMatch
from engine.ir.sources.base import MISSING, Source
from engine.ir.sources.stdlib import ContextVarSource
from engine.trace.annotations import PyCodegen, Tracer
from engine.trace.exc import Unsupported, UserException
from engine.trace.variables.base import Args, ConstantVariable, Kwargs, RealObjectVariable, Variable
from engine.trace.variables.builder import guarded_builder, register_builder, register_subclass_builder
from engine.trace.variables.callable_registry import register_break, register_rule
from engine.trace.variables.callables.methods import VariableWithMethods
from engine.trace.variables.exceptions.exceptions import ExceptionVariable
from engine.trace.variables.objects.user_defined_objects import UserDefinedObjectVariable

_LOCK_TYPES = (type(threading.Lock()), type(threading.RLock()))


class ExternalLockVariable(VariableWithMethods, RealObjectVariable):
    """A lock from outside. Its owner is unknown while tracing, so each use breaks the graph."""

    methods = ("acquire", "release", "locked", "__enter__", "__exit__")

    def call_method(self, tx: Tracer, name: str, args: Args, kwargs: Kwargs) -> Variable:
        raise Unsupported("lock", f"{name}() is called on a lock created outside the function")


register_builder(*_LOCK_TYPES)(guarded_builder(ExternalLockVariable, "the lock was used", by_type=True))


register_break("lock", "a lock is created", threading.Lock, threading.RLock, *_LOCK_TYPES)


class ThreadLocalVariable(UserDefinedObjectVariable):
    """An instance of ``threading.local`` or of a subclass.

    Its attributes are those of the current thread.
    """

    def has_generic_setattr(self, base: builtins.type) -> bool:
        return base is threading.local

    def has_no_dict(self) -> bool:
        return False

    def reconstruct(self, cg: PyCodegen) -> None:
        cg.call(new_thread_local)
        self.fill_or_defer(cg)


@register_subclass_builder(60, threading.local, why="its attributes or methods were used")
def _local(tx: Tracer, real: threading.local, source: Source) -> Variable:
    return ThreadLocalVariable(type(real), source, real)


@register_rule(threading.local)
def _construct_thread_local(tx: Tracer, args: Args, kwargs: Kwargs) -> Variable:
    if args or kwargs:
        raise Unsupported("builtin-arguments", "threading.local is created with arguments")
    return ThreadLocalVariable(threading.local, None, NotImplemented)


class ContextVarVariable(VariableWithMethods, RealObjectVariable):
    """A ``ContextVar`` that exists before the call; its value is guarded where it is read."""

    def hash_key(self, tx: Tracer) -> Any:
        return self.real_object

    methods = ("get", "set", "reset")

    def get_attr(self, tx: Tracer, name: str) -> Variable:
        return ConstantVariable(self.real_object.name) if name == "name" else super().get_attr(tx, name)

    def call_method(self, tx: Tracer, name: str, args: Args, kwargs: Kwargs) -> Variable:
        if name != "get" or len(args) > 1 or kwargs:
            raise Unsupported("context-variable", f"ContextVar.{name} is called")
        content = self._read(tx, is_default=False) or (args[0] if args else self._read(tx, is_default=True))
        if content is None:
            raise UserException(ExceptionVariable(LookupError, [self]))
        return content

    def _read(self, tx: Tracer, *, is_default: bool) -> Variable | None:
        """Return the value or the default; None if there is none."""
        assert self.source is not None
        source = ContextVarSource(self.source, is_default)
        real = source.read(self.real_object)
        if real is not MISSING:
            return tx.wrap(real, source)
        tx.guard(IdMatch, source, MISSING, why="the context variable was not set")
        return None


_CONTEXT_USE = "a context variable is created, or the context is copied"
register_break("context-variable", _CONTEXT_USE, contextvars.ContextVar, contextvars.copy_context)
register_builder(contextvars.ContextVar)(guarded_builder(ContextVarVariable, "the context variable was used"))
