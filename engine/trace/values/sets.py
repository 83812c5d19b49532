"""Sets and frozensets."""

from __future__ import annotations

from types import (
    BuiltinFunctionType,
    FunctionType,
    GetSetDescriptorType,
    MethodDescriptorType,
    MethodWrapperType,
    WrapperDescriptorType,
)
from typing import TYPE_CHECKING, Any

from engine.ir.origin import Origin, Plain
from engine.ir.value_guard import Equals, LengthIs
from engine.trace.signals import Unsupported
from engine.trace.values.base import NONE, Const, Value, force
from engine.trace.values.iterators import iterator_of
from engine.trace.values.sequences import sequence_items
from engine.trace.values.wrap import is_literal, makes, wraps

if TYPE_CHECKING:
    from engine.trace.codegen import Codegen
    from engine.trace.state import Tracer

_COMPARED = (
    type,
    tuple,
    frozenset,
    FunctionType,
    BuiltinFunctionType,
    MethodDescriptorType,
    MethodWrapperType,
    WrapperDescriptorType,
    GetSetDescriptorType,
)
"""Elements of sets that can be held against those of another set: they do not change."""


class SetValue(Value):
    """A set or frozenset: what stands for an element -> the element, in insertion order."""

    __slots__ = ("chosen", "cls", "elements", "found", "literal", "origin")
    is_mutable = True

    def __init__(self, elements: dict[Any, Value], origin: Origin | None = None, cls: type = set) -> None:
        self.elements = elements
        self.origin = origin
        self.cls = cls
        self.found: tuple[Any, ...] = ()
        """The elements of an existing set, in its own order, which depends on how it came about."""
        self.literal: frozenset[Any] | None = None
        """The constant that it is, or that a set display was made of: while its elements stay as they were, it is made so again."""
        self.chosen: int | None = None
        """Before which instruction an order was chosen that Python leaves open: from then on no other set may stand for this one."""

    @classmethod
    def of(cls, tx: Tracer, items: list[Value], kind: type = set) -> SetValue:
        """A new set of these items."""
        from engine.trace.values.identity import stored

        forced = [force(tx, i) for i in items]
        elements: dict[Any, Value] = {}
        for item in forced:
            elements.setdefault(stands_for := item.key(tx), item)
            stored(stands_for)
        return cls(elements, None, kind)

    @property
    def base(self) -> type:
        """The builtin class: what operations on it give."""
        return frozenset if issubclass(self.cls, frozenset) else set

    def type(self) -> type:
        return self.cls

    def describe(self) -> str:
        return f"{self.cls.__name__} of {len(self.elements)}"

    def python(self, tx: Tracer) -> Any:
        if self._is_literal() and not self._is_as_found() and all(map(is_literal, self.elements)):
            alike = self._alike()
            return alike if type(alike) is self.base else self.base(alike)
        return self.base(force(tx, e).python(tx) for e in self.elements.values())

    def key(self, tx: Tracer) -> Any:
        if self.base is set:
            tx.raise_type_error("unhashable type: 'set'")
        return frozenset(self.elements)

    def children(self) -> list[Value]:
        return list(self.elements.values())

    def truth(self, tx: Tracer) -> bool:
        return bool(self.elements)

    def length(self, tx: Tracer) -> Value:
        return Const(len(self.elements))

    def contains(self, tx: Tracer, item: Value) -> bool:
        return _sought(tx, item) in self.elements

    def ordered(self, tx: Tracer) -> list[Value]:
        """Elements in the order in which Python would give them."""
        if len(self.elements) <= 1:
            return list(self.elements.values())
        if self.has_fixed_hashes(tx):
            if self._is_as_found() and self.origin is not None:
                why = "the order of its elements decided what was traced"
                tx.guard(Equals(Plain(self.origin, tuple), self.found, cause=tx.cause(why)))
            return [self.elements[k] for k in self._alike()]
        if all(_is_new(k, v) or _has_fixed_hash(tx, k, v) for k, v in self.elements.items()):
            self.chosen = tx.root_executed if self.chosen is None else self.chosen
            return list(self.elements.values())
        raise self.refuse("iteration in an order that depends on addresses")

    def copied(self, tx: Tracer, kind: Any) -> SetValue:
        """``kind(self)``: its elements keep the hashes that they gave."""
        if self.has_fixed_hashes(tx):
            return SetValue.of(tx, self.ordered(tx), kind)
        return SetValue(dict(self.elements), None, kind)

    def has_fixed_hashes(self, tx: Tracer) -> bool:
        """Whether its elements hash as what stands for them, so that its order is known."""
        return all(_has_fixed_hash(tx, k, v) for k, v in self.elements.items())

    def _alike(self) -> Any:
        """A set built as generated code builds this one: it iterates in the same order."""
        if self._is_as_found():
            return self.found
        made: set[Any] = set()
        if self.literal is not None and self._is_literal():
            if self.cls is frozenset:
                return self.literal
            made.update(self.literal)
        for key in self.elements:
            made.add(key)
        return made if self.cls is not frozenset else frozenset(made)

    def _is_as_found(self) -> bool:
        return bool(self.found) and self.elements.keys() == set(self.found)

    def _is_literal(self) -> bool:
        return self.literal is not None and list(self.literal) == list(self.elements)

    def iterate(self, tx: Tracer) -> Value:
        from engine.trace.values.iterators import KeyedIterator

        ordered = [force(tx, item).key(tx) for item in self.ordered(tx)]
        return KeyedIterator(ordered, type(iter(set())), self._read, self._now, "Set", self)

    def _now(self) -> list[Any]:
        return list(self._alike()) if all(is_literal(k) for k in self.elements) else list(self.elements)

    def _read(self, key: Any) -> Value | None:
        return self.elements.get(key)

    def get_attr(self, tx: Tracer, name: str) -> Value:
        from engine.trace.values.methods import MethodOf

        if name == "__class__":
            return tx.fixed(self.cls)
        if self.lacks(name):
            tx.raise_error(AttributeError, f"'{self.cls.__name__}' object has no attribute '{name}'")
        return MethodOf(self, name)

    def call_method(self, tx: Tracer, name: str, args: list[Value], kwargs: dict[str, Value]) -> Value:
        from engine.trace.operations import operator_method
        from engine.trace.values.identity import stored

        args = [force(tx, a) for a in args]
        match name:
            case "add" | "discard" | "remove" if self.base is set:
                return self._one(tx, name, args[0])
            case "update" if self.base is set:
                tx.mutating(self)
                self._note_literal(args)
                for other in args:
                    if isinstance(other, SetValue) and not other.has_fixed_hashes(tx):  # they are not hashed again
                        self.elements = {
                            **self.elements,
                            **{k: v for k, v in other.elements.items() if k not in self.elements},
                        }
                        continue
                    for item in sequence_items(tx, other):
                        self.elements.setdefault(stands_for := force(tx, item).key(tx), item)
                        stored(stands_for)
                return NONE
            case "clear" if self.base is set:
                tx.mutating(self)
                self.elements.clear()
                return NONE
            case "pop" if self.base is set:
                return self._pop(tx)
            case "__init__" if self.base is set:
                if kwargs or len(args) > 1:
                    tx.fold(set, *[()] * len(args), **dict.fromkeys(kwargs))
                tx.mutating(self)
                self.elements.clear()
                return self.call_method(tx, "update", args, {}) if args else NONE
            case "copy" | "__copy__":
                return self if self.cls is frozenset else SetValue(dict(self.elements), None, self.base)
            case "union" | "intersection" | "difference" | "symmetric_difference":
                result = self
                for other in args:
                    result = result.combine(tx, name, _as_set(tx, other))
                return result if args else SetValue(dict(self.elements), None, self.base)
            case "difference_update" | "intersection_update" | "symmetric_difference_update" if self.base is set:
                new = self
                for other in args:
                    new = new.combine(tx, name.removesuffix("_update"), _as_set(tx, other))
                tx.mutating(self)
                self.elements = new.elements
                return NONE
            case "isdisjoint" if not isinstance(args[0], SetValue):
                # One after the other, up to the first that it holds.
                items = iterator_of(tx, args[0])
                while (found := items.step(tx)) is not None:
                    if self.contains(tx, force(tx, found)):
                        return Const(False)
                return Const(True)
            case "issubset" | "issuperset" | "isdisjoint":
                other = _as_set(tx, args[0])
                return Const(getattr(set(self.elements), name)(set(other.elements)))
            case "__contains__":
                return Const(self.contains(tx, args[0]))
            case "__iter__":
                return self.iterate(tx)
            case "__len__":
                return self.length(tx)
            case "__rand__" | "__ror__" | "__rsub__" | "__rxor__" if len(args) == 1:
                other = getattr(args[0], "inner", args[0])
                plain = name.replace("__r", "__", 1)
                return (
                    operator_method(tx, other, plain, [self], {})
                    if isinstance(other, SetValue)
                    else Const(NotImplemented)
                )
        return operator_method(tx, self, name, args, kwargs)

    def _note_literal(self, others: list[Value]) -> None:
        """A set display of constants is an empty set updated from one constant."""
        other = others[0] if len(others) == 1 and not self.elements else None
        if isinstance(other, SetValue) and other.origin is None and other.cls is frozenset:
            self.literal = other.literal

    def _one(self, tx: Tracer, name: str, item: Value) -> Value:
        from engine.trace.values.identity import stored

        stands_for = item.key(tx) if name == "add" else _sought(tx, item)
        if name == "add":
            if stands_for not in self.elements:
                tx.mutating(self)
                self.elements[stands_for] = item
                stored(stands_for)
            return NONE
        if stands_for in self.elements:
            tx.mutating(self)
            del self.elements[stands_for]
        elif name == "remove":
            tx.raise_missing_key(item)
        return NONE

    def _pop(self, tx: Tracer) -> Value:
        if not self.elements:
            tx.raise_error(KeyError, "pop from an empty set")
        first = force(tx, self.ordered(tx)[0])
        tx.mutating(self)
        del self.elements[first.key(tx)]
        return first

    def combine(self, tx: Tracer, how: str, other: SetValue) -> SetValue:
        """A new set by a set operation's method name."""
        both = {**other.elements, **self.elements}
        chosen = getattr(set(self.elements), how)(set(other.elements))
        order = [k for k in (*self.elements, *other.elements) if k in chosen]
        return SetValue({k: both[k] for k in dict.fromkeys(order)}, None, self.base)

    def _check_order(self) -> None:
        """Raises: Unsupported: its elements were seen in an order that a set made after the graph need not have."""
        if self.chosen is not None:
            refused = Unsupported("side-effect", "rebuilding a set whose order depends on addresses after the graph")
            refused.born = self.chosen
            raise refused

    def reconstruct(self, cg: Codegen) -> None:
        from engine.trace.values.identity import check_rebuilt

        self._check_order()
        if self.cls is set and cg.is_reaching(self):
            cg.out.emit("BUILD_SET", 0)
            cg.remember(self)
            cg.fill_later(self)
            return
        if self.cls is set and self._is_literal():
            cg.out.emit("BUILD_SET", 0)
            cg.const(self.literal)
            cg.out.emit("SET_UPDATE", 1)
            return
        if self.cls is frozenset and self._is_literal():
            cg.const(self.literal)
            return
        check_rebuilt(self.elements, self.cls.__name__)
        if self.cls is not set:
            cg.out.callable(lambda: cg.const(self.cls))
        cg.load_all(list(self.elements.values()))
        cg.out.emit("BUILD_SET", len(self.elements))
        if self.cls is not set:
            cg.out.call(1)

    def fill(self, cg: Codegen) -> None:
        """Put the present contents into the existing set on top of the stack, and pop it."""
        from engine.trace.support import refill_set
        from engine.trace.values.identity import check_rebuilt

        self._check_order()
        check_rebuilt(self.elements, self.cls.__name__)
        cg.helper(refill_set, 1)
        cg.load_all(list(self.elements.values()))
        cg.out.emit("BUILD_LIST", len(self.elements))
        cg.out.call(2)
        cg.out.emit("POP_TOP")


def _as_set(tx: Tracer, other: Value) -> SetValue:
    """The elements of anything that can be iterated, those of a set in any order."""
    inner = getattr(other, "inner", None)
    plain = inner if isinstance(inner, SetValue) and not _iterates_itself(other) else other
    if isinstance(plain, SetValue):
        return SetValue(dict(plain.elements), None, plain.base)
    return SetValue.of(tx, sequence_items(tx, other))


def _iterates_itself(other: Value) -> bool:
    return not isinstance(getattr(other.type(), "__iter__", None), WrapperDescriptorType)


def _sought(tx: Tracer, item: Value) -> Any:
    """What stands for something that is looked for in a set: a set is looked for as a frozenset."""
    inner = getattr(item, "inner", item)
    if isinstance(inner, SetValue) and inner.base is set:
        return frozenset(inner.elements)
    return item.key(tx)


def _is_new(key: Any, value: Value) -> bool:
    """Whether an element that hashes by where it lies was made in traced code: Python may put it anywhere."""
    return getattr(value, "inner", value) is key and key.origin is None


def _has_fixed_hash(tx: Tracer, key: Any, value: Value) -> bool:
    """Whether what stands for an element has the element's own hash."""
    value = force(tx, value)
    if is_literal(key):
        return True
    if isinstance(key, (BuiltinFunctionType, FunctionType, MethodDescriptorType)):
        return True
    if isinstance(key, type):
        return key not in tx.made_classes
    if type(key) is frozenset and isinstance(value, SetValue):
        return all(_has_fixed_hash(tx, k, v) for k, v in value.elements.items())
    items = getattr(value, "items", None)
    if type(key) is not tuple or value.type() is not tuple or not isinstance(items, list):
        return False
    return all(_has_fixed_hash(tx, k, v) for k, v in zip(key, items, strict=True))


@wraps(set, frozenset)
def _set(tx: Tracer, real: Any, origin: Origin) -> Value:
    return set_value(tx, real, origin)


def set_value(tx: Tracer, real: Any, origin: Origin) -> SetValue:
    """The value for a real set or frozenset (or for one of a subclass: as what it holds), guarded by its elements."""
    base = frozenset if isinstance(real, frozenset) else set
    if not all(is_literal(item) or isinstance(item, _COMPARED) for item in base.__iter__(real)):
        raise Unsupported("unsupported-operation", f"a {type(real).__name__} of objects")
    why = "its elements decided what was traced"
    tx.guard_type(real, origin, why)
    tx.guard(LengthIs(origin, base.__len__(real), cause=tx.cause(why)))
    plain: Any = base(real) if type(real) is base else base.copy(real)
    at = origin if type(real) is base else Plain(origin, base)
    tx.guard(Equals(at, plain, cause=tx.cause(why)))
    value = SetValue.of(tx, [tx.from_python(e) for e in plain], type(real))
    value.origin = origin
    value.found = tuple(base.__iter__(real))
    return value


@makes(set, frozenset)
def _make_set(tx: Tracer, value: Any) -> Value:
    made = SetValue.of(tx, [tx.from_python(v) for v in value], type(value))
    made.literal = value if type(value) is frozenset and all(map(is_literal, value)) else None
    return made
