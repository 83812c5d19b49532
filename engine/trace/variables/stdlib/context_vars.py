"""``contextvars``: reads are guarded, writes are recorded and replayed after the graph."""

from __future__ import annotations

import contextvars
from typing import Any

from engine.ir.guards.python_values import IdMatch
from engine.ir.sources.attributes import AttrSource
from engine.ir.sources.base import MISSING, Source
from engine.ir.sources.stdlib import ContextVarSource
from engine.trace.annotations import PyCodegen, Tracer
from engine.trace.codegen_runtime.objects import set_context_var
from engine.trace.exc import Unsupported, UserException
from engine.trace.variables.base import NONE, Args, ConstantVariable, Kwargs, Variable, realize
from engine.trace.variables.builder import register_builder
from engine.trace.variables.callable_registry import register_rule
from engine.trace.variables.callables.methods import BuiltinMethodVariable
from engine.trace.variables.exceptions.exceptions import ExceptionVariable


class _ContextVarWrites:
    """Writes of context variables in one trace."""

    def __init__(self) -> None:
        self.steps: dict[int, list[Any]] = {}
        """Writes still in effect, by variable id; values from before the call are not included."""


class ContextVarVariable(Variable):
    """A ``ContextVar``. ``_ContextVarWrites`` holds its traced writes, oldest first."""

    __slots__ = ("default", "deferred_steps", "name", "real_object", "source")
    cls = contextvars.ContextVar

    is_mutable = True

    def __init__(self, name: str, default: Variable | None, source: Source | None, real_object: Any) -> None:
        self.name = name
        self.default = default
        self.source = source
        self.real_object = real_object
        self.deferred_steps: list[ContextVarTokenVariable] = []
        """Writes to replay on the real variable after the graph."""

    def as_python_object(self) -> Any:
        return NotImplemented if self.source is None else self.real_object

    def hash_key(self, tx: Tracer) -> Any:
        return tx.objects.as_identity_key(self)

    def child_variables(self) -> list[Variable]:
        return [*([] if self.default is None else [self.default]), *self.deferred_steps]

    def get_attr(self, tx: Tracer, name: str) -> Variable:
        if name == "name":
            return ConstantVariable(self.name)
        return BuiltinMethodVariable(self, name) if name in ("get", "set", "reset") else super().get_attr(tx, name)

    def call_method(self, tx: Tracer, name: str, args: Args, kwargs: Kwargs) -> Variable:
        match name, args:
            case "get", [] | [_] if not kwargs:
                return self._get(tx, *args)
            case "set", [value] if not kwargs:
                return self._set(tx, value)
            case "reset", [token] if not kwargs:
                return self._reset(tx, realize(tx, token))
        raise self.unsupported_method(name)

    def current_value(self, tx: Tracer) -> Variable | None:
        """Return the current value, or None if the variable is not set."""
        steps: list[ContextVarTokenVariable] = tx.state_of(_ContextVarWrites).steps.get(id(self), [])
        if steps:
            return steps[-1].value
        if self.source is None:
            return None
        at = ContextVarSource(self.source)
        found = at.read(self.real_object)
        if found is MISSING:
            tx.guard(IdMatch, at, MISSING, why="the context variable was not set")
            return None
        return tx.wrap(found, at)

    def _get(self, tx: Tracer, default: Variable | None = None) -> Variable:
        found = self.current_value(tx)
        if found is None:
            found = default if default is not None else self._default(tx)
        if found is None:
            raise UserException(ExceptionVariable(LookupError, [self]))
        return found

    def _default(self, tx: Tracer) -> Variable | None:
        if self.source is None:
            return self.default
        at = ContextVarSource(self.source, True)
        found = at.read(self.real_object)
        return None if found is MISSING else tx.wrap(found, at)

    def _set(self, tx: Tracer, value: Variable) -> Variable:
        made = ContextVarTokenVariable(self, value, self.current_value(tx), None, None)
        self._add(tx, made)
        return made

    def _add(self, tx: Tracer, token: ContextVarTokenVariable) -> None:
        tx.side_effects.record_mutation(self)
        tx.state_of(_ContextVarWrites).steps.setdefault(id(self), []).append(token)
        self._publish_steps(tx)

    def _reset(self, tx: Tracer, token: Variable) -> Variable:
        if not isinstance(token, ContextVarTokenVariable):
            return tx.raise_type_error(f"expected an instance of Token, got {token.describe()}")  # type: ignore[no-any-return]
        if token.variable is not self:
            raise Unsupported("context-variable", "a context variable is reset with a token of another variable")
        steps = tx.state_of(_ContextVarWrites).steps.get(id(self), [])
        if token.source is not None:
            if any(s.reset_token is token for s in steps):
                raise Unsupported("context-variable", "a context variable is reset with a token that was used")
            self._add(tx, ContextVarTokenVariable(self, token.old_value(tx), None, None, None, reset_token=token))
            return NONE
        if token not in steps or any(s.reset_token is not None for s in steps[steps.index(token) :]):
            raise Unsupported(
                "context-variable", "a context variable is reset with a token that was used or is from another context"
            )
        tx.side_effects.record_mutation(self)
        del steps[steps.index(token) :]
        self._publish_steps(tx)
        return NONE

    def _publish_steps(self, tx: Tracer) -> None:
        self.deferred_steps = tx.state_of(_ContextVarWrites).steps[id(self)]

    def reconstruct(self, cg: PyCodegen) -> None:
        cg.call(contextvars.ContextVar, self.name, **({} if self.default is None else {"default": self.default}))
        cg.cache_top(self)
        cg.body.emit("COPY", 1)
        self.fill(cg)

    def describe_mutation(self) -> str:
        return "the context variable is set" if self.deferred_steps else ""

    def fill(self, cg: PyCodegen) -> None:
        """Emit code that replays the writes on the variable at the stack top and pops it."""
        cg.body.emit("POP_TOP")
        for step in self.deferred_steps:
            cg.load(step)
            cg.body.emit("POP_TOP")


class ContextVarTokenVariable(Variable):
    """The token of a write. ``value`` is the new value, ``previous_value`` the old one.

    None means that the variable is not set.

    With ``reset_token``, it represents a reset with a token from outside.
    """

    __slots__ = ("previous_value", "real_object", "reset_token", "source", "value", "variable")
    cls = contextvars.Token

    is_mutable = True

    def __init__(
        self,
        variable: ContextVarVariable,
        value: Variable | None,
        previous_value: Variable | None,
        source: Source | None,
        real_object: Any,
        reset_token: ContextVarTokenVariable | None = None,
    ) -> None:
        self.variable = variable
        self.value = value
        self.previous_value = previous_value
        self.source = source
        self.real_object = real_object
        self.reset_token = reset_token

    def child_variables(self) -> list[Variable]:
        return [v for v in (self.reset_token, self.value) if v is not None]

    def old_value(self, tx: Tracer) -> Variable | None:
        """Return the value before the write; None if the variable was not set."""
        if self.source is None:
            return self.previous_value
        found = self.real_object.old_value
        at = AttrSource(self.source, "old_value")
        if found is contextvars.Token.MISSING:
            tx.guard_identity(found, at, "the context variable was not set before")
            return None
        return tx.wrap(found, at)

    def get_attr(self, tx: Tracer, name: str) -> Variable:
        if name == "var":
            return self.variable
        if name == "old_value":
            found = self.old_value(tx)
            return tx.wrap_static(contextvars.Token.MISSING, "Token.MISSING") if found is None else found
        return super().get_attr(tx, name)

    def reconstruct(self, cg: PyCodegen) -> None:
        steps = self.variable.deferred_steps
        if self not in steps:
            raise Unsupported("rebuild-value", "rebuilding a token of a context variable that was reset")
        for step in steps[: steps.index(self)]:
            cg.load(step)
            cg.body.emit("POP_TOP")
        if self.reset_token is not None:
            cg.call(contextvars.ContextVar.reset, self.variable, self.reset_token)
        else:
            cg.call(set_context_var, self.variable, self.value)


@register_rule(contextvars.copy_context)
def _copy_context(tx: Tracer, args: Args, kwargs: Kwargs) -> Variable:
    raise Unsupported("context-variable", "the context is copied")


@register_rule(contextvars.ContextVar)
def _new_context_var(tx: Tracer, args: Args, kwargs: Kwargs) -> Variable:
    name = realize(tx, args[0]) if len(args) == 1 else NONE
    if type(name.constant) is not str or set(kwargs) - {"default"}:
        raise Unsupported("non-constant-arguments", "a context variable is created without a constant name")
    return ContextVarVariable(name.constant, kwargs.get("default"), None, None)


@register_builder(contextvars.ContextVar)
def _variable(tx: Tracer, real: contextvars.ContextVar[Any], origin: Source) -> Variable:
    tx.guard_identity(real, origin, "the context variable was used")
    return ContextVarVariable(real.name, None, origin, real)


@register_builder(contextvars.Token)
def _token(tx: Tracer, real: contextvars.Token[Any], origin: Source) -> Variable:
    tx.guard_type(real, origin, "the token was used")
    variable: Any = tx.wrap(real.var, AttrSource(origin, "var"))
    return ContextVarTokenVariable(variable, None, None, origin, real)
