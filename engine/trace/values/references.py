"""Weak references and their containers."""

from __future__ import annotations

import builtins
import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from engine.bytecode.resume import resumed
from engine.ir.origin import MISSING, Attr, Local, Origin, Proxied, Referent, proxied
from engine.ir.value_guard import IsObject
from engine.trace.signals import Skip, Unsupported
from engine.trace.values.base import NONE, Lazy, Value, force
from engine.trace.values.cells import CellValue
from engine.trace.values.methods import BoundMethod
from engine.trace.values.objects import ObjectValue
from engine.trace.values.partials import PartialValue
from engine.trace.values.rules import special
from engine.trace.values.wrap import wraps

if TYPE_CHECKING:
    from engine.trace.codegen import Codegen
    from engine.trace.state import Tracer


class ReferenceValue(Value):
    """A ``weakref.ref``. ``of`` is what it refers to, None where that is gone. One made while tracing has no origin."""

    is_mutable = True

    def __init__(
        self, of: Value, origin: Origin | None = None, held: Any = None, callback: Value | None = None
    ) -> None:
        self.of = of
        self.origin = origin
        self.held = held
        self.callback = callback
        self.object: Any = NotImplemented
        """What it refers to, where that exists."""

    def real(self) -> Any:
        # Of references without a callback, an object has one.
        if self.held is None and self.callback is None and self.object is not NotImplemented:
            return weakref.ref(self.object)
        return NotImplemented if self.held is None else self.held

    def type(self) -> builtins.type:
        return weakref.ref if self.held is None else type(self.held)

    def truth(self, tx: Tracer) -> bool:
        return True

    def key(self, tx: Tracer) -> Any:
        return ("weakref", self.of.key(tx))

    def get_attr(self, tx: Tracer, name: str) -> Value:
        if name == "key" and self.origin is not None and isinstance(self.held, weakref.KeyedRef):
            return tx.lazy(self.held.key, Attr(self.origin, "key"))
        return super().get_attr(tx, name)

    def call(self, tx: Tracer, args: list[Value], kwargs: dict[str, Value]) -> Value:
        if self.origin is None and _may_die(tx, self.of) and not _is_named(tx, self.of):
            raise Skip("unknown-call", f"whether {self.of.describe()} is still alive is asked")
        return self.of

    def children(self) -> list[Value]:
        return [self.of] if self.callback is None else [self.of, self.callback]

    def reconstruct(self, cg: Codegen) -> None:
        if cg.at_break and _may_die(cg.tx, self.of):
            raise Unsupported("side-effect", f"{self.of.describe()} must die at the moment at which nothing names it")
        cg.out.callable(lambda: cg.const(weakref.ref))
        cg.load_all(self.children())
        cg.out.call(len(self.children()))


def _may_die(tx: Tracer, of: Value) -> bool:
    """Whether the traced code alone holds it: made while tracing, or by the part of the function before a break."""
    if of.origin is None or of.is_made:
        return True
    return resumed(tx.frames[0].code) is not None and isinstance(of.origin.chain()[0], Local)


def _is_named(tx: Tracer, of: Value) -> bool:
    """Whether a variable or a place on the stack of a running function holds it now."""
    held = (
        v for frame in tx.frames for v in (*frame.locals.values(), *frame.stack, *map(_content, frame.cells.values()))
    )
    return any(v is of or (isinstance(v, Lazy) and v.known is of) for v in held)


def _content(cell: Any) -> Any:
    return cell.content if isinstance(cell, CellValue) else None


def _is_held(tx: Tracer, of: Value) -> bool:
    """Whether the traced code reaches an object from where it is, by way of anything but weak references."""
    held = [
        *(v for f in tx.frames for v in (*f.locals.values(), *f.stack, *f.cells.values(), f.function) if v is not None),
        *(v for v in tx.globals_written.values() if v is not None),
        *tx.mutated.values(),
    ]
    seen: set[int] = set()
    while held:
        value = held.pop()
        if isinstance(value, Lazy):
            if value.known is None:
                continue
            value = value.known
        if value is of:
            return True
        if id(value) not in seen and not isinstance(value, (ReferenceValue, ProxyValue)):
            seen.add(id(value))
            held += value.children()
    return False


@wraps(weakref.ref, weakref.KeyedRef)
def _reference(tx: Tracer, real: Any, origin: Origin) -> Value:
    tx.guard_type(real, origin, "what it refers to was used")
    held = real()
    at = Referent(origin)
    if held is None:
        tx.guard(IsObject(at, None, cause=tx.cause("what it referred to is gone")))
        return ReferenceValue(NONE, origin, real)
    return ReferenceValue(tx.wrap(held, at), origin, real)


class ProxyValue(Value):
    """A ``weakref.proxy``: does what the object does, for as long as something holds that. ``held`` is None where the traced code makes it."""

    is_mutable = True

    def __init__(self, of: Value, origin: Origin | None, held: Any) -> None:
        self.of = of
        self.origin = origin
        self.held = held

    def type(self) -> builtins.type:
        if self.held is not None:
            return type(self.held)
        return weakref.ProxyType if self.of.lacks("__call__") else weakref.CallableProxyType

    def real(self) -> Any:
        return NotImplemented if self.held is None else self.held

    def _alive(self, tx: Tracer) -> Value:
        """The object, whose death would be Python's to see.

        Raises:
            Skip: nothing that the traced code can reach holds it.
        """
        if _may_die(tx, self.of) and not _is_held(tx, self.of):
            raise Skip("unknown-call", f"whether {self.of.describe()} is still alive is asked")
        return self.of

    def describe(self) -> str:
        return f"weak proxy of {self.of.describe()}"

    def children(self) -> list[Value]:
        return [self.of]

    def get_attr(self, tx: Tracer, name: str) -> Value:
        return self._alive(tx).get_attr(tx, name)

    def set_attr(self, tx: Tracer, name: str, value: Value) -> None:
        self._alive(tx).set_attr(tx, name, value)

    def del_attr(self, tx: Tracer, name: str) -> None:
        self._alive(tx).del_attr(tx, name)

    def call(self, tx: Tracer, args: list[Value], kwargs: dict[str, Value]) -> Value:
        return self._alive(tx).call(tx, args, kwargs)

    def call_method(self, tx: Tracer, name: str, args: list[Value], kwargs: dict[str, Value]) -> Value:
        return self._alive(tx).call_method(tx, name, args, kwargs)

    def truth(self, tx: Tracer) -> bool:
        return self._alive(tx).truth(tx)

    def length(self, tx: Tracer) -> Value:
        return self._alive(tx).length(tx)

    def iterate(self, tx: Tracer) -> Value:
        return self._alive(tx).iterate(tx)

    def get_item(self, tx: Tracer, key: Value) -> Value:
        return self._alive(tx).get_item(tx, key)

    def set_item(self, tx: Tracer, key: Value, value: Value) -> None:
        self._alive(tx).set_item(tx, key, value)

    def step(self, tx: Tracer) -> Value | None:
        return self._alive(tx).step(tx)

    def del_item(self, tx: Tracer, key: Value) -> None:
        self._alive(tx).del_item(tx, key)

    def contains(self, tx: Tracer, item: Value) -> bool:
        return self._alive(tx).contains(tx, item)

    def key(self, tx: Tracer) -> Any:
        return tx.raise_type_error(f"unhashable type: '{self.type().__name__}'")

    def reconstruct(self, cg: Codegen) -> None:
        if cg.at_break and _may_die(cg.tx, self.of):
            raise Unsupported("side-effect", f"{self.of.describe()} must die at the moment at which nothing names it")
        cg.out.callable(lambda: cg.const(weakref.proxy))
        cg.load(self.of)
        cg.out.call(1)


@wraps(weakref.ProxyType, weakref.CallableProxyType)
def _proxy(tx: Tracer, real: Any, origin: Origin) -> Value:
    tx.guard_type(real, origin, "what it stands for was used")
    held = proxied(real)
    if held is MISSING:
        raise Unsupported("unsupported-operation", "a weak proxy of what is gone, or does not tell, is used")
    of = tx.wrap(held, Proxied(origin))
    if not isinstance(of, ObjectValue):
        raise Unsupported("unsupported-operation", f"a weak proxy of {of.describe()} is used")
    return ProxyValue(of, origin, real)


def _rule(kind: str) -> Callable[[Tracer, list[Value], dict[str, Value]], Value]:
    def rule(tx: Tracer, args: list[Value], kwargs: dict[str, Value]) -> Value:
        of = force(tx, args[0]) if args else NONE
        if kind == "reference" and len(args) == 1 and not kwargs and (not _may_die(tx, of) or type(of) is ObjectValue):
            made = ReferenceValue(of)
            made.object = tx.real_of(of)
            return made
        lives = not kwargs and not isinstance(of, BoundMethod) and not _may_die(tx, of)
        if lives and kind == "reference" and len(args) == 2:
            return ReferenceValue(of, callback=args[1])
        if kind == "proxy" and len(args) == 1 and not kwargs and isinstance(of, ObjectValue):
            if type(of) not in (ObjectValue, PartialValue):
                raise Unsupported("unknown-call", f"a weak proxy of {of.describe()} is made")
            real = None if of.held is NotImplemented else weakref.proxy(of.held)
            return tx.proxies.setdefault(id(of), ProxyValue(of, None, real))
        what = f"a weak {kind} to {of.describe()} is made"
        if isinstance(of, BoundMethod) or _may_die(tx, of):
            # It dies when its last name goes: a function cut in two holds it for longer, or less long.
            raise Skip("unknown-call", what)
        raise Unsupported("unknown-call", what)

    return rule


special(weakref.ref)(_rule("reference"))
special(weakref.KeyedRef)(_rule("reference with a key"))
special(weakref.WeakMethod)(_rule("reference to a method,"))
special(weakref.proxy)(_rule("proxy"))
