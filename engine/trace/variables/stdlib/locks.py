"""``threading.Lock`` and ``RLock``. No other thread holds a lock created in traced code."""

from __future__ import annotations

import builtins
import threading
from typing import Any

from engine.ir.sources.base import Source
from engine.trace.annotations import PyCodegen, Tracer
from engine.trace.codegen_runtime.objects import make_acquired_lock
from engine.trace.exc import Unsupported
from engine.trace.variables.base import NONE, Args, ConstantVariable, Kwargs, RealObjectVariable, Variable, realize
from engine.trace.variables.builder import register_builder
from engine.trace.variables.callable_registry import register_rule
from engine.trace.variables.callables.methods import BuiltinMethodVariable

_LOCK_FACTORIES = {type(threading.Lock()): threading.Lock, type(threading.RLock()): threading.RLock}
_METHODS = frozenset(("acquire", "release", "locked", "__enter__", "__exit__"))


class LockVariable(Variable):
    """A ``threading.Lock`` or ``RLock``, acquired ``acquire_count`` times by this thread."""

    __slots__ = ("acquire_count", "cls")

    is_mutable = True

    def __init__(self, cls: builtins.type) -> None:
        self.cls = cls
        self.acquire_count = 0

    @property
    def is_reentrant(self) -> bool:
        """True if the owner can acquire the lock again."""
        return _LOCK_FACTORIES[self.cls] is threading.RLock

    def get_attr(self, tx: Tracer, name: str) -> Variable:
        return (
            BuiltinMethodVariable(self, name)
            if name in _METHODS and hasattr(self.cls, name)
            else super().get_attr(tx, name)
        )

    def call_method(self, tx: Tracer, name: str, args: Args, kwargs: Kwargs) -> Variable:
        match name:
            case "acquire" | "__enter__":
                return self._acquire(tx, *args, **kwargs)
            case "release" | "__exit__":
                return self._release(tx)
            case "locked" if not self.is_reentrant:
                return ConstantVariable(self.acquire_count > 0)
        raise self.unsupported_method(name)

    def _acquire(
        self,
        tx: Tracer,
        blocking: Variable = ConstantVariable(True),  # noqa: B008 -- a constant is immutable
        timeout: Variable = ConstantVariable(-1),  # noqa: B008
    ) -> Variable:
        waits = realize(tx, blocking).is_truthy(tx)
        if realize(tx, timeout).constant != -1:
            raise Unsupported("lock", "a lock is acquired with a timeout")
        if self.acquire_count and not self.is_reentrant:
            if waits:
                raise Unsupported("lock", "a lock that is held is acquired")
            return ConstantVariable(False)
        tx.side_effects.mutation_count += 1
        self.acquire_count += 1
        return ConstantVariable(True)

    def _release(self, tx: Tracer) -> Variable:
        if not self.acquire_count:
            text = "cannot release un-acquired lock" if self.is_reentrant else "release unlocked lock"
            tx.raise_error(RuntimeError, text)
        tx.side_effects.mutation_count += 1
        self.acquire_count -= 1
        return NONE

    def reconstruct(self, cg: PyCodegen) -> None:
        cg.call(make_acquired_lock, _LOCK_FACTORIES[self.cls], self.acquire_count)


class ExternalLockVariable(RealObjectVariable):
    """A lock from outside. Its owner is unknown while tracing, so each use breaks the graph."""

    __slots__ = ()

    def get_attr(self, tx: Tracer, name: str) -> Variable:
        return (
            BuiltinMethodVariable(self, name)
            if name in _METHODS and hasattr(self.real_object, name)
            else super().get_attr(tx, name)
        )

    def call_method(self, tx: Tracer, name: str, args: Args, kwargs: Kwargs) -> Variable:
        raise Unsupported("lock", f"{name}() is called on a lock created outside the function")


@register_builder(*_LOCK_FACTORIES)
def _build_external_lock(tx: Tracer, real: Any, origin: Source) -> Variable:
    tx.guard_type(real, origin, "the lock was used")
    return ExternalLockVariable(real, origin)


@register_rule(threading.Lock)
def _lock(tx: Tracer, args: Args, kwargs: Kwargs) -> Variable:
    tx.fold_constant(lambda: len([threading.Lock(*args, **kwargs)]))
    return LockVariable(type(threading.Lock()))


@register_rule(threading.RLock, type(threading.RLock()))
def _rlock(tx: Tracer, args: Args, kwargs: Kwargs) -> Variable:
    tx.fold_constant(lambda: len([threading.RLock(*args, **kwargs)]))
    return LockVariable(type(threading.RLock()))
