"""Instances of Python subclasses of dict, list, set and tuple: attributes as any object's, contents as the builtin's."""

from __future__ import annotations

import collections
import dataclasses
import types
from typing import TYPE_CHECKING, Any, TypeGuard

from engine.bytecode.opcodes import VERSION
from engine.ir.origin import Attr, Origin, Plain
from engine.ir.relation_guard import SameObject
from engine.ir.value_guard import Equals
from engine.trace.signals import Unsupported
from engine.trace.values.base import NONE, Const, NotConstant, Value, force
from engine.trace.values.classes import ClassValue, find_in_class
from engine.trace.values.mapping_subclasses import inherited, pairs_in_order
from engine.trace.values.mappings import DictValue, dict_value, entries_of
from engine.trace.values.objects import ObjectValue
from engine.trace.values.rules import special
from engine.trace.values.sequences import ListValue, TupleValue, items_of, sequence_items
from engine.trace.values.sets import SetValue, set_value
from engine.trace.values.shown import shown
from engine.trace.values.wrap import wraps, wraps_if

if TYPE_CHECKING:
    from engine.trace.codegen import Codegen
    from engine.trace.state import Tracer

SCALARS: tuple[type, ...] = (int, float, complex, str, bytes)
_BASES: tuple[type, ...] = (
    collections.OrderedDict,
    collections.defaultdict,
    dict,
    list,
    set,
    frozenset,
    tuple,
    *SCALARS,
)
_HEAP = 1 << 9


def container_base(cls: type) -> Any:
    """The builtin container, number or text that a Python class derives from; None for any other class."""
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
        return [*self.inner.children(), *filter(None, [self._factory()]), *super().children()]

    def get_attr(self, tx: Tracer, name: str) -> Value:
        factory = self._factory() if name == "default_factory" else None
        if factory is not None:
            return factory
        found = find_in_class(self.cls, name) if isinstance(self.inner, Const) else None
        if found is not None and isinstance(found[1], _FROM_C) and found[0] is container_base(self.cls):
            return self.inner.get_attr(tx, name)  # the real part of a complex number, say
        return super().get_attr(tx, name)

    def builtin_method(self, tx: Tracer, name: str, args: list[Value], kwargs: dict[str, Value]) -> Value:
        """A method of the builtin class itself."""
        if isinstance(self.inner, DictValue):
            by_subclass = inherited(tx, self, name, args, kwargs)
            if by_subclass is not None:
                return by_subclass
        match name:
            case "__init__":
                return self._fill_inner(tx, args, kwargs)
            case "__len__":
                return self.inner.length(tx)
            case "__getitem__" if isinstance(self.inner, DictValue):
                return self._item(tx, args[0])
            case "__repr__" if not isinstance(self.inner, Const):
                return Const(self._text(tx))
            case "__iter__":
                return self.inner.iterate(tx)
            case "__contains__":
                return Const(self.inner.contains(tx, args[0]))
            case "copy" | "__copy__" if isinstance(self.inner, DictValue) and not args:
                if container_base(self.cls) is dict:
                    return DictValue(dict(self.inner.entries))
                factory = [] if self._factory() is None else [self._factory() or NONE]
                return force(tx, tx.fixed(self.cls).call(tx, [*factory, self], {}))
            case "__getitem__":
                return self.inner.get_item(tx, args[0])
            case "__reversed__":
                from engine.trace.values.iterators import SequenceIterator

                kind: Any = type(reversed([])) if isinstance(self.inner, ListValue) else reversed
                return SequenceIterator(list(reversed(sequence_items(tx, self.inner))), kind)
        if isinstance(self.inner, Const):
            return self._scalar_method(tx, name, args, kwargs)
        from engine.trace.operations import COMPARE_METHODS

        is_binary = name in COMPARE_METHODS or (isinstance(self.inner, SetValue) and name in _OF_SETS)
        if is_binary and len(args) == 1 and isinstance(other := force(tx, args[0]), ContainerObject):
            args = [other.inner]  # the builtin's own operation looks past what a subclass defines
        if isinstance(self.inner, SetValue) and name in _REFLECTED_OF_SETS and len(args) == 1:
            other = force(tx, args[0])
            if not isinstance(other, SetValue):
                return Const(NotImplemented)
            return other.call_method(tx, _REFLECTED_OF_SETS[name], [self.inner], {})
        result = self.inner.call_method(tx, name, args, kwargs)
        if result is not self.inner:
            return result
        if isinstance(result, TupleValue):  # of a subclass, even a whole slice is another tuple
            return TupleValue(list(result.items))
        return SetValue(dict(result.elements), None, result.base) if _is_frozen(result) else self

    def _text(self, tx: Tracer) -> str:
        """``repr``, with dots where it is shown inside of itself."""
        is_named = isinstance(self.inner, SetValue) or container_base(self.cls) in _NAMED
        shown_already = (0, id(self))
        if shown_already in tx.showing:
            if isinstance(self.inner, SetValue):
                return f"{self.cls.__name__}(...)"
            return "..." if is_named else _DOTS[container_base(self.cls)]
        tx.showing.add(shown_already)
        try:
            return f"{self.cls.__name__}({self._contents_shown(tx)})" if is_named else self._plain_text(tx)
        finally:
            tx.showing.discard(shown_already)

    def _plain_text(self, tx: Tracer) -> str:
        """The text that the builtin class gives, which does not name the subclass."""
        if isinstance(self.inner, DictValue):
            pairs = [(shown(tx, key), shown(tx, value)) for key, value in self.inner.entries.values()]
            return f"{{{', '.join(f'{key!r}: {value!r}' for key, value in pairs)}}}"
        items = [repr(shown(tx, item)) for item in sequence_items(tx, self.inner)]
        if isinstance(self.inner, ListValue):
            return f"[{', '.join(items)}]"
        return f"({items[0]},)" if len(items) == 1 else f"({', '.join(items)})"

    def _contents_shown(self, tx: Tracer) -> str:
        """What its text says of the contents, where it begins with the name of the class."""
        if not self.inner.truth(tx) and self._factory() is None:
            return ""
        if isinstance(self.inner, SetValue):
            return f"{{{', '.join(repr(shown(tx, item)) for item in self.inner.ordered(tx))}}}"
        if self._factory() is None and VERSION >= (3, 12) and self._defines("keys", "__getitem__"):
            pairs = [shown(tx, TupleValue(list(pair))) for pair in pairs_in_order(tx, self)]
        elif self._factory() is None and VERSION < (3, 12) and self._defines("items"):
            pairs = [shown(tx, pair) for pair in sequence_items(tx, self.call_method(tx, "items", [], {}))]
        else:
            pairs = [shown(tx, TupleValue(list(pair))) for pair in entries_of(tx, self.inner)]
        plain = repr(collections.OrderedDict(pairs))  # which shows pairs or a dict, by the version of Python
        plain = plain.removeprefix("OrderedDict(").removesuffix(")")
        return plain if self._factory() is None else f"{shown(tx, self._factory() or NONE)!r}, {dict(pairs)!r}"

    def _defines(self, *names: str) -> bool:
        """Whether Python code of the class's says what one of these does."""
        found = [find_in_class(self.cls, name) for name in names]
        return any(f is not None and isinstance(f[1], types.FunctionType) for f in found)

    def _factory(self) -> Value | None:
        """The ``default_factory`` of a ``defaultdict``."""
        is_default = isinstance(self.inner, DictValue) and container_base(self.cls) is collections.defaultdict
        return (self.inner.factory or NONE) if is_default else None  # type: ignore[attr-defined]

    def _scalar_method(self, tx: Tracer, name: str, args: list[Value], kwargs: dict[str, Value]) -> Value:
        """A method of a number or text: folded, with what the arguments are as instances of the builtin classes."""
        if name == "__format__" and force(tx, args[0]).python(tx) == "":
            return force(tx, tx.fixed(str).call(tx, [self], {}))
        given = [as_builtin(a) for a in args]
        if name.startswith("__") and not all(tx.is_constant(a) for a in given):
            return Const(NotImplemented)
        return self.inner.call_method(tx, name, given, kwargs)

    def python(self, tx: Tracer) -> Any:
        if not isinstance(self.inner, Const) or self.own_methods():
            raise NotConstant
        return self.inner.value

    def own_methods(self) -> set[str]:
        """Special methods of the builtin class that Python code overrides: what operators, comparison or conversion give is its to say."""
        base = container_base(self.cls)
        own = self.cls.__mro__[: self.cls.__mro__.index(base)]
        return {n for c in own for n in vars(c) if n.startswith("__") and n not in _HARMLESS and n in dir(base)}

    def _item(self, tx: Tracer, key: Value) -> Value:
        """``dict.__getitem__``, which asks the class's ``__missing__`` for what is not there."""
        missing = self.method(tx, "__missing__")
        if missing is None:
            return self.inner.get_item(tx, key)
        if self.inner.contains(tx, key):
            return self.inner.get_item(tx, key)
        return force(tx, missing.call(tx, [key], {}))

    def _fill_inner(self, tx: Tracer, args: list[Value], kwargs: dict[str, Value]) -> Value:
        if isinstance(self.inner, DictValue):
            self.inner.call_method(tx, "__init__", args, kwargs)
        elif isinstance(self.inner, SetValue) and self.inner.base is set:
            if kwargs or len(args) > 1:
                tx.fold(self.inner.base, *[()] * len(args), **dict.fromkeys(kwargs))
            self.inner.call_method(tx, "__init__", args, {})
        elif isinstance(self.inner, ListValue):
            if kwargs and _makes_as(self.cls, list):
                tx.fold(list, **dict.fromkeys(kwargs))
            self.inner.call_method(tx, "__init__", args, {})
        return NONE

    def key(self, tx: Tracer) -> Any:
        if isinstance(self.inner, TupleValue) or (
            not self.own_methods() & {"__eq__", "__hash__"}
            and (isinstance(self.inner, Const) or (isinstance(self.inner, SetValue) and self.inner.base is frozenset))
        ):
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
        elif isinstance(self.inner, Const):
            cg.const(self.inner.value)
            cg.out.call(2)
        elif _is_frozen(self.inner):
            cg.load(SetValue(self.inner.elements, None, frozenset))
            cg.out.call(2)
        else:
            cg.out.call(1)
        cg.remember(self)
        self.fill_now(cg)

    def fill(self, cg: Codegen) -> None:
        """Set contents (of an object made while tracing) and attributes on the object on top of the stack, and pop it."""
        if self.origin is None and not isinstance(self.inner, (TupleValue, Const)) and not _is_frozen(self.inner):
            cg.out.emit("COPY", 1)
            fill_builtin(cg, self.inner)
            factory = self._factory()
            if factory is not None:
                cg.out.emit("COPY", 1)
                cg.load(factory)
                cg.out.emit("SWAP", 2)
                cg.out.emit("STORE_ATTR", "default_factory")
        super().fill(cg)


def _makes_as(cls: Any, base: Any) -> bool:
    """Whether a subclass has the ``__new__`` of the builtin class."""
    return cls.__new__ is base.__new__


def as_builtin(value: Value) -> Value:
    """A number or text of a subclass as what C code sees that asks none of its methods."""
    return value.inner if isinstance(value, ContainerObject) and isinstance(value.inner, Const) else value


def _is_frozen(inner: Value) -> TypeGuard[SetValue]:
    return isinstance(inner, SetValue) and inner.base is frozenset


_OF_SETS = frozenset(f"__{kind}{name}__" for kind in ("", "r", "i") for name in ("and", "or", "xor", "sub"))
_REFLECTED_OF_SETS = {f"__r{name}__": f"__{name}__" for name in ("and", "or", "xor", "sub")}

_DOTS: dict[type, str] = {dict: "{...}", list: "[...]", tuple: "(...)"}
_NAMED = (collections.OrderedDict, collections.defaultdict)
_FROM_C = (types.MemberDescriptorType, types.GetSetDescriptorType)
_HARMLESS = frozenset(
    (
        "__module__",
        "__dict__",
        "__weakref__",
        "__new__",
        "__init__",
        "__doc__",
        "__init_subclass__",
        "__getattribute__",
        "__class_getitem__",
    )
)
"""Special methods of which no operation on the builtin part of an instance asks."""


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


def new_container_value(cls: type, inner: Value | None = None) -> ContainerObject:
    """A new instance of a subclass of a builtin container, empty, or (of what cannot change) with its contents."""
    base = container_base(cls)
    if inner is None:
        if base is list:
            inner = ListValue([], None, cls)
        elif base is set:
            inner = SetValue({}, None, cls)
        else:
            inner = DictValue({}, None, cls, NONE if base is collections.defaultdict else None)
    return ContainerObject(cls, None, NotImplemented, inner)


def _new(tx: Tracer, args: list[Value], kwargs: dict[str, Value]) -> Value:
    """``int.__new__(cls, ...)`` and the like."""
    of = force(tx, args[0])
    base = container_base(of.held) if isinstance(of, ClassValue) else None
    if base is None:
        raise Unsupported("unknown-call", f"__new__ of {of.describe()}")
    return new_instance(tx, of.held, base, args[1:], kwargs)  # type: ignore[attr-defined]


def new_instance(tx: Tracer, cls: Any, base: Any, args: list[Value], kwargs: dict[str, Value]) -> Value:
    """What the ``__new__`` of the builtin class ``base`` makes for a subclass (or for itself)."""
    if base in _CHANGEABLE:
        return new_container_value(cls)
    if base in (tuple, frozenset, float) and cls.__init__ is not base.__init__:
        kwargs = {}  # those that a class takes which initialises its instances are for that
    if base is tuple:
        if kwargs or len(args) > 1:
            tx.fold(tuple, *[()] * len(args), **dict.fromkeys(kwargs))
        made: Value = TupleValue(list(sequence_items(tx, args[0])) if args else [], tuple)
    else:
        made = force(tx, tx.fixed(base).call(tx, list(args), kwargs))
    if cls is base:
        return made
    if isinstance(made, ContainerObject):
        made = made.inner
    if base in SCALARS and not isinstance(made, Const):
        raise Unsupported("unknown-call", f"{cls.__qualname__} is created of a number that is not known")
    if isinstance(made, SetValue):
        made = SetValue(dict(made.elements), None, cls)
    return new_container_value(cls, made)


_CHANGEABLE = (collections.OrderedDict, collections.defaultdict, dict, list, set)
for _base in _BASES:
    if "__new__" in vars(_base) and _base is not tuple:
        special(_base.__new__)(_new)


def _is_container_object(real: Any) -> bool:
    return isinstance(real, (dict, list, set, frozenset, tuple, *SCALARS)) and (
        container_base(type(real)) is not None and type(real) not in _BASES
    )


@wraps_if(60, _is_container_object)
def _container_object(tx: Tracer, real: Any, origin: Origin) -> Value:
    inner: Value
    if isinstance(real, dict):
        inner = dict_value(tx, real, origin)
    elif isinstance(real, list):
        inner = ListValue(items_of(tx, real, origin), origin, type(real))
    elif isinstance(real, tuple):
        inner = TupleValue(items_of(tx, real, origin))
    elif isinstance(real, (set, frozenset)):
        inner = set_value(tx, real, origin)
    else:
        base = container_base(type(real))
        tx.guard_type(real, origin, "its value decided what was traced")
        at = Plain(origin, base)
        inner = Const(at.read(real), at)
        tx.guard(Equals(at, inner.value, cause=tx.cause("its value decided what was traced")))
    made = ContainerObject(type(real), origin, real, inner)
    if isinstance(real, dict) and getattr(real, "__dict__", None) is real:
        # Attributes and entries are the same.
        tx.guard(SameObject(Attr(origin, "__dict__"), origin, True, cause=tx.cause("it is its own __dict__")))
        made.namespace = made
    return made


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
