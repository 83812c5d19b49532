"""Instances of Python subclasses of ``functools.partial``: attributes as any object's, calls as the class or ``partial`` makes them."""

from __future__ import annotations

import builtins
import functools
from typing import TYPE_CHECKING, Any

from engine.ir.origin import Attr, Origin
from engine.trace.signals import Unsupported
from engine.trace.support import new_partial
from engine.trace.values.base import Value, force
from engine.trace.values.classes import ClassValue
from engine.trace.values.mappings import DictValue
from engine.trace.values.methods import PartialValue
from engine.trace.values.objects import ObjectValue
from engine.trace.values.rules import special
from engine.trace.values.sequences import TupleValue
from engine.trace.values.wrap import wraps_if

if TYPE_CHECKING:
    from engine.trace.codegen import Codegen
    from engine.trace.state import Tracer


class PartialObject(ObjectValue):
    """``inner`` is what ``functools.partial`` itself holds of it."""

    def __init__(self, cls: type, origin: Origin | None, held: Any, inner: PartialValue) -> None:
        super().__init__(cls, origin, held)
        self.inner = inner

    def children(self) -> list[Value]:
        return [self.inner.function, *self.inner.args, *self.inner.kwargs.values(), *super().children()]

    def get_attr(self, tx: Tracer, name: str) -> Value:
        if name in ("func", "args", "keywords"):
            return self.inner.get_attr(tx, name)
        return super().get_attr(tx, name)

    def sets_plainly(self, base: builtins.type) -> bool:
        return base is functools.partial

    def deletes_plainly(self, base: builtins.type) -> bool:
        return base is functools.partial

    def reconstruct(self, cg: Codegen) -> None:
        cg.helper(new_partial, 0)
        cg.const(self.cls)
        inner = self.inner
        cg.load_all([inner.function, *inner.args, *inner.kwargs.values()])
        cg.call_keywords(2 + len(inner.args), tuple(inner.kwargs))
        cg.remember(self)
        self.fill_now(cg)


def new_partial_value(tx: Tracer, cls: type, args: list[Value], kwargs: dict[str, Value]) -> Value:
    """What ``partial.__new__(cls, ...)`` makes."""
    inner = force(tx, tx.fixed(functools.partial).call(tx, args, kwargs))
    if not isinstance(inner, PartialValue) or (args and isinstance(force(tx, args[0]), PartialObject)):
        raise Unsupported("unknown-call", f"{cls.__qualname__} is created")
    return inner if cls is functools.partial else PartialObject(cls, None, NotImplemented, inner)


@special(functools.partial.__new__)
def _new(tx: Tracer, args: list[Value], kwargs: dict[str, Value]) -> Value:
    cls = force(tx, args[0])
    if not isinstance(cls, ClassValue) or not issubclass(cls.held, functools.partial):
        raise Unsupported("unknown-call", "partial.__new__ is called")
    return new_partial_value(tx, cls.held, args[1:], kwargs)


@special(functools.partial.__call__)
def _call(tx: Tracer, args: list[Value], kwargs: dict[str, Value]) -> Value:
    of = force(tx, args[0])
    inner = of.inner if isinstance(of, PartialObject) else of
    if not isinstance(inner, PartialValue):
        raise Unsupported("unknown-call", "partial.__call__ is called")
    if tx.direct is not None:
        tx.direct = inner
    return inner.call(tx, args[1:], kwargs)


def _is_partial(real: Any) -> bool:
    return isinstance(real, functools.partial)


@wraps_if(55, _is_partial)
def _partial_object(tx: Tracer, real: functools.partial[Any], origin: Origin) -> Value:
    tx.guard_type(real, origin, "it was used")
    args, words = tx.wrap(real.args, Attr(origin, "args")), tx.wrap(real.keywords, Attr(origin, "keywords"))
    assert isinstance(args, TupleValue)
    assert isinstance(words, DictValue)
    named = {str(k): v for k, (_, v) in words.entries.items()}
    inner = PartialValue(tx.wrap(real.func, Attr(origin, "func")), args.items, named, origin, real)
    return PartialObject(type(real), origin, real, inner)
