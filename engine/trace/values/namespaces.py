"""``types.SimpleNamespace``: an object whose attributes are all that it is."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from engine.ir.origin import Origin
from engine.trace import operations
from engine.trace.values.base import Const, Value, force
from engine.trace.values.mappings import entries_of
from engine.trace.values.methods import MethodOf
from engine.trace.values.objects import ObjectValue, note_namespace
from engine.trace.values.rules import special
from engine.trace.values.wrap import wraps

if TYPE_CHECKING:
    from engine.trace.codegen import Codegen
    from engine.trace.state import Tracer


class NamespaceValue(ObjectValue):
    """A namespace, made while tracing or read."""

    def method(self, tx: Tracer, name: str) -> Value | None:
        return MethodOf(self, name) if name in ("__eq__", "__ne__", "__repr__", "__str__") else None

    def call_method(self, tx: Tracer, name: str, args: list[Value], kwargs: dict[str, Value]) -> Value:
        match name:
            case "__eq__" | "__ne__":
                return self._compared(tx, name, force(tx, args[0]))
            case "__repr__" | "__str__":
                return tx.fold(repr, self.python(tx))
        return super().call_method(tx, name, args, kwargs)

    def sets_plainly(self, base: type) -> bool:
        return True

    def del_attr(self, tx: Tracer, name: str) -> None:
        if self.own_attr(tx, name) is None:
            tx.raise_error(AttributeError, name)
        self.set_plainly(tx, name, None)

    def _compared(self, tx: Tracer, name: str, other: Value) -> Value:
        if not isinstance(other, NamespaceValue):
            return Const(NotImplemented)
        equal = operations.same_or_equal(tx, self.get_attr(tx, "__dict__"), other.get_attr(tx, "__dict__"))
        return Const(equal == (name == "__eq__"))

    def key(self, tx: Tracer) -> Any:
        return tx.raise_type_error("unhashable type: 'types.SimpleNamespace'")

    def python(self, tx: Tracer) -> Any:
        found = force(tx, self.get_attr(tx, "__dict__")).python(tx)
        return SimpleNamespace(**found)

    def reconstruct(self, cg: Codegen) -> None:
        cg.out.callable(lambda: cg.const(SimpleNamespace))
        cg.out.call(0)
        cg.remember(self)
        cg.fill_later(self)


@wraps(SimpleNamespace)
def _namespace(tx: Tracer, real: SimpleNamespace, origin: Origin) -> Value:
    tx.guard_type(real, origin, "its attributes were used")
    made = NamespaceValue(SimpleNamespace, origin, real)
    note_namespace(tx, made)
    return made


@special(SimpleNamespace)
def _made(tx: Tracer, args: list[Value], kwargs: dict[str, Value]) -> Value:
    made = NamespaceValue(SimpleNamespace, None, NotImplemented)
    for key, value in entries_of(tx, args[0]) if args else []:
        made.set_plainly(tx, str(force(tx, key).python(tx)), value)
    for name, value in kwargs.items():
        made.set_plainly(tx, name, value)
    return made
