"""``threading.Lock`` and ``RLock``: Python runs all operations on them."""

from __future__ import annotations

import threading

from engine.trace.annotations import Tracer
from engine.trace.exc import Unsupported
from engine.trace.variables.base import Args, Kwargs, RealObjectVariable, Variable
from engine.trace.variables.builder import guarded_builder, register_builder
from engine.trace.variables.callable_registry import register_rule
from engine.trace.variables.callables.methods import VariableWithMethods

_LOCK_TYPES = (type(threading.Lock()), type(threading.RLock()))


class ExternalLockVariable(VariableWithMethods, RealObjectVariable):
    """A lock from outside. Its owner is unknown while tracing, so each use breaks the graph."""

    methods = ("acquire", "release", "locked", "__enter__", "__exit__")

    def call_method(self, tx: Tracer, name: str, args: Args, kwargs: Kwargs) -> Variable:
        raise Unsupported("lock", f"{name}() is called on a lock created outside the function")


register_builder(*_LOCK_TYPES)(guarded_builder(ExternalLockVariable, "the lock was used", by_type=True))


@register_rule(threading.Lock, threading.RLock, *_LOCK_TYPES)
def _new_lock(tx: Tracer, args: Args, kwargs: Kwargs) -> Variable:
    raise Unsupported("lock", "a lock is created")
