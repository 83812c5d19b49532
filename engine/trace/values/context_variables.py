"""Context variables: what they hold is guarded where it is read; what is set stays while tracing, and is set for real after the graph."""

from __future__ import annotations

import builtins
import contextlib
import contextvars
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from engine.ir.origin import MISSING, Attr, ContextContent, Origin
from engine.ir.value_guard import IsObject
from engine.trace.signals import Unsupported, UserException
from engine.trace.support import set_variable
from engine.trace.values.base import NONE, Const, Value, force
from engine.trace.values.methods import MethodOf
from engine.trace.values.rules import special
from engine.trace.values.wrap import wraps

if TYPE_CHECKING:
    from engine.trace.codegen import Codegen
    from engine.trace.state import Tracer

Args = list[Value]
Words = dict[str, Value]


class VariableValue(Value):
    """A ``ContextVar``. What the traced code did to it that still holds lies in ``tx.context``, oldest first."""

    is_mutable = True

    def __init__(self, name: str, default: Value | None, origin: Origin | None, held: Any) -> None:
        self.name = name
        self.default = default
        self.origin = origin
        self.held = held
        self.done: list[TokenValue] = []
        """What is to be done to the real variable after the graph."""

    def type(self) -> builtins.type:
        return contextvars.ContextVar

    def real(self) -> Any:
        return NotImplemented if self.origin is None else self.held

    def key(self, tx: Tracer) -> Any:
        return tx.keyed_by_identity(self)

    def truth(self, tx: Tracer) -> bool:
        return True

    def children(self) -> list[Value]:
        return [*([] if self.default is None else [self.default]), *self.done]

    def get_attr(self, tx: Tracer, name: str) -> Value:
        if name == "name":
            return Const(self.name)
        return MethodOf(self, name) if name in ("get", "set", "reset") else super().get_attr(tx, name)

    def call_method(self, tx: Tracer, name: str, args: Args, kwargs: Words) -> Value:
        match name, args:
            case "get", [] | [_] if not kwargs:
                return self._get(tx, *args)
            case "set", [value] if not kwargs:
                return self._set(tx, value)
            case "reset", [token] if not kwargs:
                return self._reset(tx, force(tx, token))
        raise self.refuse(f"the method {name!r}")

    def content(self, tx: Tracer) -> Value | None:
        """What it holds, None where it was never set (or not since)."""
        steps: list[TokenValue] = tx.context.get(id(self), [])
        if steps:
            return steps[-1].value
        if self.origin is None:
            return None
        at = ContextContent(self.origin)
        found = at.read(self.held)
        if found is MISSING:
            tx.guard(IsObject(at, MISSING, cause=tx.cause("the context variable was not set")))
            return None
        return tx.wrap(found, at)

    def _get(self, tx: Tracer, default: Value | None = None) -> Value:
        found = self.content(tx)
        if found is None:
            found = default if default is not None else self._default(tx)
        if found is None:
            from engine.trace.values.exceptions import ExceptionValue

            raise UserException(ExceptionValue(LookupError, [self]))
        return found

    def _default(self, tx: Tracer) -> Value | None:
        if self.origin is None:
            return self.default
        at = ContextContent(self.origin, True)
        found = at.read(self.held)
        return None if found is MISSING else tx.wrap(found, at)

    def _set(self, tx: Tracer, value: Value) -> Value:
        made = TokenValue(self, value, self.content(tx), None, None)
        self._add(tx, made)
        return made

    def _add(self, tx: Tracer, token: TokenValue) -> None:
        tx.mutating(self)
        tx.context.setdefault(id(self), []).append(token)
        self._settle(tx)

    def _reset(self, tx: Tracer, token: Value) -> Value:
        if not isinstance(token, TokenValue):
            return tx.raise_type_error(f"expected an instance of Token, got {token.describe()}")  # type: ignore[no-any-return]
        if token.variable is not self:
            raise Unsupported("unknown-call", "a context variable is reset with a token of another one")
        steps = tx.context.get(id(self), [])
        if token.origin is not None:
            if any(s.undoes is token for s in steps):
                raise Unsupported("unknown-call", "a context variable is reset with a token that was used")
            self._add(tx, TokenValue(self, token.old_value(tx), None, None, None, undoes=token))
            return NONE
        if token not in steps or any(s.undoes is not None for s in steps[steps.index(token) :]):
            raise Unsupported("unknown-call", "a context variable is reset with a token that was used, or elsewhere")
        tx.mutating(self)
        del steps[steps.index(token) :]
        self._settle(tx)
        return NONE

    def _settle(self, tx: Tracer) -> None:
        """Only what happens in the context of the call itself is seen from outside."""
        if tx.contexts_entered == 0:
            self.done = tx.context[id(self)]

    def reconstruct(self, cg: Codegen) -> None:
        cg.helper(contextvars.ContextVar, 0)
        cg.const(self.name)
        if self.default is not None:
            cg.load(self.default)
        cg.call_keywords(1, ("default",) if self.default is not None else ())
        cg.remember(self)
        cg.out.emit("COPY", 1)
        self.fill(cg)

    def fill(self, cg: Codegen) -> None:
        """Do to the variable on top of the stack what the traced code did, and pop it."""
        cg.out.emit("POP_TOP")
        for step in self.done:
            cg.load(step)
            cg.out.emit("POP_TOP")


class TokenValue(Value):
    """What setting a variable gave: ``value`` is what it then holds (None: nothing), ``before`` what it held.

    One with ``undoes`` stands for resetting with a token from outside.
    """

    is_mutable = True

    def __init__(
        self,
        variable: VariableValue,
        value: Value | None,
        before: Value | None,
        origin: Origin | None,
        held: Any,
        undoes: TokenValue | None = None,
    ) -> None:
        self.variable = variable
        self.value = value
        self.before = before
        self.origin = origin
        self.held = held
        self.undoes = undoes

    def type(self) -> builtins.type:
        return contextvars.Token

    def truth(self, tx: Tracer) -> bool:
        return True

    def children(self) -> list[Value]:
        return [v for v in (self.undoes, self.value) if v is not None]

    def old_value(self, tx: Tracer) -> Value | None:
        """What the variable held before; None where it held nothing."""
        if self.origin is None:
            return self.before
        found = self.held.old_value
        at = Attr(self.origin, "old_value")
        if found is contextvars.Token.MISSING:
            tx.guard_object(found, at, "the context variable was not set before")
            return None
        return tx.wrap(found, at)

    def get_attr(self, tx: Tracer, name: str) -> Value:
        if name == "var":
            return self.variable
        if name == "old_value":
            found = self.old_value(tx)
            return tx.fixed(contextvars.Token.MISSING, "Token.MISSING") if found is None else found
        return super().get_attr(tx, name)

    def reconstruct(self, cg: Codegen) -> None:
        steps = self.variable.done
        if self not in steps:
            raise Unsupported("side-effect", "rebuilding a token of a context variable that was reset")
        for step in steps[: steps.index(self)]:
            cg.load(step)
            cg.out.emit("POP_TOP")
        cg.helper(contextvars.ContextVar.reset if self.undoes is not None else set_variable, 0)
        cg.load(self.variable)
        if self.undoes is not None:
            cg.load(self.undoes)
        elif self.value is not None:
            cg.load(self.value)
        cg.out.call(2)


class ContextValue(Value):
    """What ``copy_context()`` made: the steps that were done in it, by variable."""

    is_mutable = True

    def __init__(self, steps: dict[int, list[TokenValue]]) -> None:
        self.steps = steps

    def type(self) -> builtins.type:
        return contextvars.Context

    def key(self, tx: Tracer) -> Any:
        return self

    def truth(self, tx: Tracer) -> bool:
        raise self.refuse("a truth test")

    @contextlib.contextmanager
    def entered(self, tx: Tracer) -> Iterator[None]:
        """What is read and set meanwhile is read from it and set in it."""
        outside, tx.context = tx.context, self.steps
        tx.contexts_entered += 1
        try:
            yield
        finally:
            tx.context = outside
            tx.contexts_entered -= 1

    def _content(self, tx: Tracer, of: Value) -> Value | None:
        variable = force(tx, of)
        if not isinstance(variable, VariableValue):
            return tx.raise_type_error(f"a ContextVar key was expected, got {variable.describe()}")  # type: ignore[no-any-return]
        with self.entered(tx):
            return variable.content(tx)

    def contains(self, tx: Tracer, item: Value) -> bool:
        return self._content(tx, item) is not None

    def get_item(self, tx: Tracer, key: Value) -> Value:
        found = self._content(tx, key)
        if found is None:
            from engine.trace.values.exceptions import ExceptionValue

            raise UserException(ExceptionValue(KeyError, [key]))
        return found

    def get_attr(self, tx: Tracer, name: str) -> Value:
        return MethodOf(self, name) if name in ("run", "get", "copy") else super().get_attr(tx, name)

    def call_method(self, tx: Tracer, name: str, args: Args, kwargs: Words) -> Value:
        match name, args:
            case "run", [function, *rest]:
                with self.entered(tx):
                    return force(tx, function).call(tx, rest, kwargs)
            case "get", [key, *default] if len(default) < 2:
                return self._content(tx, key) or (default[0] if default else NONE)
            case "copy", []:
                return ContextValue(_copied(self.steps))
        raise self.refuse(f"the method {name!r}")


def _copied(steps: dict[int, list[TokenValue]]) -> dict[int, list[TokenValue]]:
    return {key: list(found) for key, found in steps.items()}


@special(contextvars.copy_context)
def _copy_context(tx: Tracer, args: Args, kwargs: Words) -> Value:
    return ContextValue(_copied(tx.context))


@special(contextvars.ContextVar)
def _made(tx: Tracer, args: Args, kwargs: Words) -> Value:
    name = force(tx, args[0]) if len(args) == 1 else None
    if not isinstance(name, Const) or name.type() is not str or set(kwargs) - {"default"}:
        raise Unsupported("unknown-call", "a context variable is created in an unusual way")
    return VariableValue(name.value, kwargs.get("default"), None, None)


@wraps(contextvars.ContextVar)
def _variable(tx: Tracer, real: contextvars.ContextVar[Any], origin: Origin) -> Value:
    tx.guard_object(real, origin, "the context variable was used")
    return VariableValue(real.name, None, origin, real)


@wraps(contextvars.Token)
def _token(tx: Tracer, real: contextvars.Token[Any], origin: Origin) -> Value:
    tx.guard_type(real, origin, "the token was used")
    variable = tx.wrap(real.var, Attr(origin, "var"))
    assert isinstance(variable, VariableValue)
    return TokenValue(variable, None, None, origin, real)
