"""``globals()``: a window on the global variables of the function that asks."""

from __future__ import annotations

from typing import TYPE_CHECKING

from engine.ir.origin import MISSING, Global, MaybeGlobal, Namespace
from engine.ir.value_guard import IsObject
from engine.trace.values.base import NONE, Const, Value, force
from engine.trace.values.methods import MethodOf
from engine.trace.values.rules import special

if TYPE_CHECKING:
    from engine.trace.codegen import Codegen
    from engine.trace.state import Tracer


class GlobalNames(Value):
    """Read and written by name; which names there are is not told."""

    def __init__(self, namespace: Namespace) -> None:
        self.namespace = namespace

    def type(self) -> type:
        return dict

    def truth(self, tx: Tracer) -> bool:
        return True

    def find(self, tx: Tracer, key: Value) -> Value | None:
        """The variable of that name; None where there is none."""
        name = key.python(tx)
        place = (self.namespace, name)
        if not isinstance(name, str):
            raise self.refuse("asking for what is no name")
        if place in tx.globals_written:
            return tx.globals_written[place]
        if name in self.namespace.values:
            return force(tx, tx.wrap(self.namespace.values[name], Global(self.namespace, name)))
        why = f"there was no global variable {name}"
        tx.guard(IsObject(MaybeGlobal(self.namespace, name), MISSING, cause=tx.cause(why)))
        return None

    def contains(self, tx: Tracer, item: Value) -> bool:
        return self.find(tx, item) is not None

    def get_item(self, tx: Tracer, key: Value) -> Value:
        return self.find(tx, key) or tx.raise_missing_key(key)

    def set_item(self, tx: Tracer, key: Value, value: Value) -> None:
        name = key.python(tx)
        if not isinstance(name, str):
            raise self.refuse("setting what is no name")
        tx.write_global(self.namespace, name, value)

    def get_attr(self, tx: Tracer, name: str) -> Value:
        return MethodOf(self, name)

    def call_method(self, tx: Tracer, name: str, args: list[Value], kwargs: dict[str, Value]) -> Value:
        given = [force(tx, a) for a in args]
        match name, len(given):
            case "get", (1 | 2):
                return self.find(tx, given[0]) or (given[1] if len(given) == 2 else NONE)
            case "__getitem__", 1:
                return self.get_item(tx, given[0])
            case "__contains__", 1:
                return Const(self.contains(tx, given[0]))
        raise self.refuse(f"the method {name!r} of globals()")

    def reconstruct(self, cg: Codegen) -> None:
        cg.namespace(self.namespace)


@special(globals)
def _globals(tx: Tracer, args: list[Value], kwargs: dict[str, Value]) -> Value:
    namespace = tx.frames[-1].globals
    return tx.namespaces.setdefault(id(namespace.values), GlobalNames(namespace))
