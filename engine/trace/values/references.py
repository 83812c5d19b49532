"""Weak references and their containers."""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING, Any

from engine.ir.guard import IsObject
from engine.ir.origin import Origin, Referent
from engine.trace.signals import Unsupported
from engine.trace.values.base import NONE, Value, force
from engine.trace.values.functions import special
from engine.trace.values.wrap import wraps

if TYPE_CHECKING:
    from engine.trace.codegen import Codegen
    from engine.trace.state import Tracer


class ReferenceValue(Value):
    """A ``weakref.ref``. ``of`` is what it refers to, None where that is gone."""

    def __init__(self, of: Value, origin: Origin | None = None) -> None:
        self.of = of
        self.origin = origin

    def type(self) -> type:
        return weakref.ref

    def truth(self, tx: Tracer) -> bool:
        return True

    def key(self, tx: Tracer) -> Any:
        return ("weakref", self.of.key(tx))

    def call(self, tx: Tracer, args: list[Value], kwargs: dict[str, Value]) -> Value:
        return self.of

    def children(self) -> list[Value]:
        return [self.of]

    def reconstruct(self, cg: Codegen) -> None:
        cg.out.callable(lambda: cg.const(weakref.ref))
        cg.load(self.of)
        cg.out.call(1)


@wraps(weakref.ref)
def _reference(tx: Tracer, real: Any, origin: Origin) -> Value:
    tx.guard_type(real, origin, "what it refers to was used")
    held = real()
    at = Referent(origin)
    if held is None:
        tx.guard(IsObject(at, None, cause=tx.cause("what it referred to is gone")))
        return ReferenceValue(NONE, origin)
    return ReferenceValue(tx.wrap(held, at), origin)


@special(weakref.ref)
def _made(tx: Tracer, args: list[Value], kwargs: dict[str, Value]) -> Value:
    of = force(tx, args[0])
    if len(args) > 1 or of.origin is None:
        # An object made while tracing dies in Python when its last name goes, which tracing does not follow.
        raise Unsupported("unknown-call", f"a weak reference to {of.describe()} is made")
    return ReferenceValue(of)
