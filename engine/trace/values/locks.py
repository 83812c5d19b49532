"""Locks that the traced code makes: nobody else can hold one before it is handed out."""

from __future__ import annotations

import builtins
import threading
from typing import TYPE_CHECKING, Any

from engine.ir.origin import Origin
from engine.trace.signals import Unsupported
from engine.trace.support import held_lock
from engine.trace.values.base import NONE, Const, HeldValue, Value, force
from engine.trace.values.methods import MethodOf
from engine.trace.values.rules import special
from engine.trace.values.wrap import wraps

if TYPE_CHECKING:
    from engine.trace.codegen import Codegen
    from engine.trace.state import Tracer

_MADE_BY = {type(threading.Lock()): threading.Lock, type(threading.RLock()): threading.RLock}
_METHODS = frozenset(("acquire", "release", "locked", "__enter__", "__exit__"))


class LockValue(Value):
    """A ``threading.Lock`` or ``RLock``, taken ``count`` times by this thread."""

    is_mutable = True

    def __init__(self, cls: builtins.type) -> None:
        self.cls = cls
        self.count = 0

    def type(self) -> builtins.type:
        return self.cls

    def truth(self, tx: Tracer) -> bool:
        return True

    def key(self, tx: Tracer) -> Any:
        return self

    @property
    def is_reentrant(self) -> bool:
        """Whether its owner may take it again."""
        return _MADE_BY[self.cls] is threading.RLock

    def get_attr(self, tx: Tracer, name: str) -> Value:
        return MethodOf(self, name) if name in _METHODS and hasattr(self.cls, name) else super().get_attr(tx, name)

    def call_method(self, tx: Tracer, name: str, args: list[Value], kwargs: dict[str, Value]) -> Value:
        match name:
            case "acquire" | "__enter__":
                return self._acquire(tx, *args, **kwargs)
            case "release" | "__exit__":
                return self._release(tx)
            case "locked" if not self.is_reentrant:
                return Const(self.count > 0)
        raise self.refuse(f"the method {name!r}")

    def _acquire(self, tx: Tracer, blocking: Value = Const(True), timeout: Value = Const(-1)) -> Value:  # noqa: B008
        waits = force(tx, blocking).truth(tx)
        if not isinstance(force(tx, timeout), Const) or force(tx, timeout).python(tx) != -1:
            raise Unsupported("unknown-call", "a lock is waited for with a limit")
        if self.count and not self.is_reentrant:
            if waits:
                raise Unsupported("unknown-call", "a lock that is held is waited for")
            return Const(False)
        tx.changes += 1
        self.count += 1
        return Const(True)

    def _release(self, tx: Tracer) -> Value:
        if not self.count:
            text = "cannot release un-acquired lock" if self.is_reentrant else "release unlocked lock"
            tx.raise_error(RuntimeError, text)
        tx.changes += 1
        self.count -= 1
        return NONE

    def reconstruct(self, cg: Codegen) -> None:
        cg.helper(held_lock, 0)
        cg.const(_MADE_BY[self.cls])
        cg.const(self.count)
        cg.out.call(2)


class OutsideLock(HeldValue):
    """A lock that exists when the call begins: who holds it is known only when it is asked for, so each use is Python's."""

    def truth(self, tx: Tracer) -> bool:
        return True

    def key(self, tx: Tracer) -> Any:
        return tx.keyed_by_identity(self)

    def get_attr(self, tx: Tracer, name: str) -> Value:
        return MethodOf(self, name) if name in _METHODS and hasattr(self.held, name) else super().get_attr(tx, name)

    def call_method(self, tx: Tracer, name: str, args: list[Value], kwargs: dict[str, Value]) -> Value:
        raise Unsupported("unknown-call", f"{name}() of a lock from outside is called")


@wraps(*_MADE_BY)
def _outside(tx: Tracer, real: Any, origin: Origin) -> Value:
    tx.guard_type(real, origin, "the lock was used")
    return OutsideLock(real, origin)


@special(threading.Lock)
def _lock(tx: Tracer, args: list[Value], kwargs: dict[str, Value]) -> Value:
    tx.fold(lambda: len([threading.Lock(*args, **kwargs)]))
    return LockValue(type(threading.Lock()))


@special(threading.RLock, type(threading.RLock()))
def _rlock(tx: Tracer, args: list[Value], kwargs: dict[str, Value]) -> Value:
    tx.fold(lambda: len([threading.RLock(*args, **kwargs)]))
    return LockValue(type(threading.RLock()))
