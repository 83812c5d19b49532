"""``contextvars``: reads are guarded. Python creates, sets and resets context variables."""

from __future__ import annotations

import contextvars
from typing import Any

from engine.ir.guards.python_values import IdMatch
from engine.ir.sources.base import MISSING
from engine.ir.sources.stdlib import ContextVarSource
from engine.trace.annotations import Tracer
from engine.trace.exc import Unsupported, UserException
from engine.trace.variables.base import Args, ConstantVariable, Kwargs, RealObjectVariable, Variable
from engine.trace.variables.builder import guarded_builder, register_builder
from engine.trace.variables.callable_registry import register_rule
from engine.trace.variables.callables.methods import VariableWithMethods
from engine.trace.variables.exceptions.exceptions import ExceptionVariable


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
        found = self._read(tx, is_default=False) or (args[0] if args else self._read(tx, is_default=True))
        if found is None:
            raise UserException(ExceptionVariable(LookupError, [self]))
        return found

    def _read(self, tx: Tracer, *, is_default: bool) -> Variable | None:
        """Return the value or the default; None if there is none."""
        assert self.source is not None
        at = ContextVarSource(self.source, is_default)
        found = at.read(self.real_object)
        if found is not MISSING:
            return tx.wrap(found, at)
        tx.guard(IdMatch, at, MISSING, why="the context variable was not set")
        return None


@register_rule(contextvars.ContextVar, contextvars.copy_context)
def _use_context(tx: Tracer, args: Args, kwargs: Kwargs) -> Variable:
    raise Unsupported("context-variable", "a context variable is created, or the context is copied")


register_builder(contextvars.ContextVar)(guarded_builder(ContextVarVariable, "the context variable was used"))
