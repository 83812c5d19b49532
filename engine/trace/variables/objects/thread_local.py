"""Variable for ``threading.local``; its attributes are those of the current thread."""

from __future__ import annotations

import builtins
import threading

from engine.frame_code.codegen_runtime.objects import new_thread_local
from engine.ir.sources.base import Source
from engine.trace.annotations import PyCodegen, Tracer
from engine.trace.exc import Unsupported
from engine.trace.variables.base import Args, Kwargs, Variable
from engine.trace.variables.builder import register_subclass_builder
from engine.trace.variables.callable_registry import register_rule
from engine.trace.variables.objects.user_defined_objects import UserDefinedObjectVariable


class ThreadLocalVariable(UserDefinedObjectVariable):
    """An instance of ``threading.local`` or of a subclass."""

    def has_generic_setattr(self, base: builtins.type) -> bool:
        return base is threading.local

    def has_no_dict(self) -> bool:
        return False

    def reconstruct(self, cg: PyCodegen) -> None:
        cg.call(new_thread_local)
        cg.cache_top(self)
        self.fill_or_defer(cg)


@register_subclass_builder(60, threading.local)
def _local(tx: Tracer, real: threading.local, source: Source) -> Variable:
    tx.guard_type(real, source, "its attributes or methods were used")
    return ThreadLocalVariable(type(real), source, real)


@register_rule(threading.local)
def _construct_thread_local(tx: Tracer, args: Args, kwargs: Kwargs) -> Variable:
    if args or kwargs:
        raise Unsupported("builtin-arguments", "threading.local is created with arguments")
    return ThreadLocalVariable(threading.local, None, NotImplemented)
