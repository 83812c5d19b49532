"""Instances of Python subclasses of dict, list, set and tuple: attributes as any object's, contents as the builtin's."""

from __future__ import annotations

import collections
import dataclasses
from typing import TYPE_CHECKING, Any

from engine.ir.origin import Origin
from engine.trace.values.base import NONE, Const, Value, force
from engine.trace.values.functions import BoundMethod, BuiltinValue
from engine.trace.values.mappings import DictValue, SetValue, dict_value
from engine.trace.values.objects import ObjectValue
from engine.trace.values.sequences import ListValue, TupleValue, items_of
from engine.trace.values.wrap import wraps, wraps_if

if TYPE_CHECKING:
    from engine.trace.codegen import Codegen
    from engine.trace.state import Tracer

_BASES: tuple[type, ...] = (collections.OrderedDict, collections.defaultdict, dict, list, set, tuple)
_HEAP = 1 << 9


def container_base(cls: type) -> type | None:
    """The builtin container that a Python class derives from; None for any other class."""
    for base in cls.__mro__:
        if base in _BASES:
            return base
        if not base.__flags__ & _HEAP:
            return None
    return None


class ContainerObject(ObjectValue):
    """``inner`` holds the contents; methods that Python code overrides are looked into."""

    def __init__(self, cls: type, origin: Origin | None, held: Any, inner: Value) -> None:
        super().__init__(cls, origin, held)
        self.inner = inner

    def describe(self) -> str:
        return f"{self.cls.__name__} object of {self.inner.describe()}"

    def children(self) -> list[Value]:
        return [*self.inner.children(), *super().children()]

    def builtin_method(self, tx: Tracer, name: str, args: list[Value], kwargs: dict[str, Value]) -> Value:
        """A method of the builtin class itself."""
        match name:
            case "__init__":
                return self._fill_inner(tx, args, kwargs)
            case "__len__":
                return self.inner.length(tx)
            case "__getitem__" if isinstance(self.inner, DictValue):
                return self._item(tx, args[0])
            case "__reversed__":
                from engine.trace.values.iterators import SequenceIterator
                from engine.trace.values.sequences import sequence_items

                return SequenceIterator(list(reversed(sequence_items(tx, self.inner))), reversed)
        return self.inner.call_method(tx, name, args, kwargs)

    def _item(self, tx: Tracer, key: Value) -> Value:
        """``dict.__getitem__``, which asks the class's ``__missing__`` for what is not there."""
        missing = self.method(tx, "__missing__")
        if missing is None or (isinstance(missing, BoundMethod) and isinstance(missing.function, BuiltinValue)):
            return self.inner.get_item(tx, key)
        if self.inner.contains(tx, key):
            return self.inner.get_item(tx, key)
        return force(tx, missing.call(tx, [key], {}))

    def _fill_inner(self, tx: Tracer, args: list[Value], kwargs: dict[str, Value]) -> Value:
        if isinstance(self.inner, (DictValue, SetValue)):
            self.inner.call_method(tx, "update", args, kwargs)
        elif isinstance(self.inner, ListValue) and args:
            self.inner.call_method(tx, "extend", args, {})
        return NONE

    def key(self, tx: Tracer) -> Any:
        if isinstance(self.inner, TupleValue):
            return self.inner.key(tx)
        return super().key(tx)

    def graph_arg(self, tx: Tracer) -> tuple[Any, Any]:
        return self.inner.graph_arg(tx)

    def reconstruct(self, cg: Codegen) -> None:
        from engine.trace.support import new_container

        cg.helper(new_container, 0)
        cg.const(self.cls)
        if isinstance(self.inner, TupleValue):
            cg.load_all(self.inner.items)
            cg.out.emit("BUILD_TUPLE", len(self.inner.items))
            cg.out.call(2)
        else:
            cg.out.call(1)
        cg.remember(self)
        self.fill_now(cg)

    def fill(self, cg: Codegen) -> None:
        """Set contents (of an object made while tracing) and attributes on the object on top of the stack, and pop it."""
        if self.origin is None and not isinstance(self.inner, TupleValue):
            cg.out.emit("COPY", 1)
            fill_builtin(cg, self.inner)
        super().fill(cg)


def fill_builtin(cg: Codegen, inner: Value) -> None:
    """Replace the contents of the container on top of the stack past its class's own methods, and pop it."""
    from engine.trace.support import refill_list

    if isinstance(inner, ListValue):
        cg.helper(refill_list, 1)
        cg.load_all(inner.items)
        cg.out.emit("BUILD_LIST", len(inner.items))
        cg.out.call(2)
        cg.out.emit("POP_TOP")
        return
    inner.fill(cg)  # type: ignore[attr-defined]


def new_container_value(cls: type, args: list[Value]) -> ContainerObject:
    """A new instance of a subclass of a builtin container, empty (a tuple: with its items)."""
    base = container_base(cls)
    inner: Value
    if base is list:
        inner = ListValue([], None, cls)
    elif base is set:
        inner = SetValue({}, None, cls)
    elif base is tuple:
        inner = TupleValue(list(args), tuple)
    else:
        inner = DictValue({}, None, cls, NONE if base is collections.defaultdict else None)
    return ContainerObject(cls, None, NotImplemented, inner)


def _is_container_object(real: Any) -> bool:
    return isinstance(real, (dict, list)) and container_base(type(real)) is not None and type(real) not in _BASES


@wraps_if(60, _is_container_object)
def _container_object(tx: Tracer, real: Any, origin: Origin) -> Value:
    inner: Value
    if isinstance(real, dict):
        inner = dict_value(tx, real, origin)
    else:
        inner = ListValue(items_of(tx, real, origin), origin, type(real))
    return ContainerObject(type(real), origin, real, inner)


class FieldValue(Value):
    """A ``dataclasses.Field``: a description that does not change."""

    def __init__(self, held: dataclasses.Field[Any], origin: Origin) -> None:
        self.held = held
        self.origin = origin

    def type(self) -> type:
        return dataclasses.Field

    def real(self) -> Any:
        return self.held

    def key(self, tx: Tracer) -> Any:
        return self.held

    def get_attr(self, tx: Tracer, name: str) -> Value:
        found = getattr(self.held, name)
        return Const(found) if isinstance(found, (str, bool, type(None))) else tx.fixed(found)


@wraps(dataclasses.Field)
def _field(tx: Tracer, real: Any, origin: Origin) -> Value:
    return FieldValue(real, origin)
