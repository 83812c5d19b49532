"""``copy.copy``, ``copy.deepcopy`` and pickles: objects are taken apart and put together as their classes say."""

from __future__ import annotations

import codecs
import collections
import copy
import io
import pickle
import sys
import types
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from engine.trace import operations
from engine.trace.signals import Unsupported
from engine.trace.values.base import NONE, Const, Lazy, Value, force, is_none
from engine.trace.values.caches import MadeCache
from engine.trace.values.classes import ClassValue, class_origin, find_in_class, is_plain_class
from engine.trace.values.container_objects import ContainerObject, container_base, new_instance
from engine.trace.values.functions import FunctionValue, RealFunction
from engine.trace.values.identity import IdKey
from engine.trace.values.iterators import KeyedIterator, RangeIterator, SequenceIterator
from engine.trace.values.mappings import DictValue
from engine.trace.values.methods import BuiltinValue
from engine.trace.values.namespaces import NamespaceValue
from engine.trace.values.objects import ObjectValue, PythonModule, dict_of
from engine.trace.values.partials import PartialValue
from engine.trace.values.rules import special
from engine.trace.values.sequences import ListValue, RangeValue, SliceValue, TupleValue, sequence_items
from engine.trace.values.sets import SetValue
from engine.trace.values.tensor import TensorValue

if TYPE_CHECKING:
    from engine.trace.codegen import Codegen
    from engine.trace.state import Tracer

Args = list[Value]
Words = dict[str, Value]
Copied = Callable[[Value], Value]


@dataclass(frozen=True)
class Parts:
    """What an object is made of again: ``make(*args)``, or an instance of the class by its ``__new__``; then its state, items and entries."""

    make: Value
    args: Args
    state: Value
    items: Args
    entries: list[tuple[Value, Value]]
    by_new: bool = False


def _method(tx: Tracer, of: Value, name: str) -> Value | None:
    """A method that Python code defines, bound."""
    found = find_in_class(of.type(), name)
    if found is None or not isinstance(found[1], types.FunctionType) or not isinstance(of, ObjectValue):
        return None
    return of.method(tx, name)


def parts_of(tx: Tracer, of: Value, protocol: int) -> Parts:
    """Take an object apart.

    Raises:
        Unsupported: C code would do it that is not known here.
    """
    by_protocol, plain = _method(tx, of, "__reduce_ex__"), _method(tx, of, "__reduce__")
    if by_protocol is not None:
        return _told(tx, of, by_protocol.call(tx, [Const(protocol)], {}))
    if plain is not None:
        return _told(tx, of, plain.call(tx, [], {}))
    if isinstance(of, PartialValue):
        return _told(tx, of, of.builtin_method(tx, "__reduce__", [], {}))
    if isinstance(of, SliceValue):
        return Parts(tx.fixed(slice), list(of.parts), NONE, [], [])
    if isinstance(of, SetValue) and of.cls in (set, frozenset):
        return Parts(tx.fixed(of.cls), [ListValue(list(of.elements.values()))], NONE, [], [])
    is_known = type(of) in (ObjectValue, NamespaceValue) and (is_plain_class(of.type()) or of.type() is _SPACE)
    if not isinstance(of, ContainerObject) and not is_known:
        raise Unsupported("unknown-call", f"taking apart {of.describe()}")
    assert isinstance(of, ObjectValue)
    cls = tx.wrap(of.cls, class_origin(of.cls)) if of.cls not in tx.made_classes else tx.made_classes[of.cls]
    return _default_parts(tx, of, cls, protocol)


_SPACE = types.SimpleNamespace


def _told(tx: Tracer, of: Value, told: Value) -> Parts:
    """What a ``__reduce__`` gives."""
    told = force(tx, told)
    if not isinstance(told, TupleValue) or not 2 <= len(told.items) <= 5:
        raise Unsupported("unknown-call", f"what __reduce__ of {of.describe()} gives is used")
    parts = [force(tx, i) for i in told.items] + [NONE] * 3
    items = [] if is_none(parts[3]) else list(sequence_items(tx, parts[3]))
    pairs = [] if is_none(parts[4]) else [sequence_items(tx, p) for p in sequence_items(tx, parts[4])]
    return Parts(parts[0], list(sequence_items(tx, parts[1])), parts[2], items, [(p[0], p[1]) for p in pairs])


def _default_parts(tx: Tracer, of: ObjectValue, cls: Value, protocol: int) -> Parts:
    if _method(tx, of, "__getnewargs_ex__") is not None:
        raise Unsupported("unknown-call", f"__getnewargs_ex__ of {of.describe()} is asked")
    args: Args = []
    items: Args = []
    entries: list[tuple[Value, Value]] = []
    asked = _method(tx, of, "__getnewargs__")
    slots = _slots(tx, of)
    if protocol < 2 and (asked is not None or slots or _has_new(of.cls)):
        raise Unsupported("unknown-call", f"a pickle of {of.describe()} by an old protocol")
    if asked is not None:
        args = list(sequence_items(tx, asked.call(tx, [], {})))
    by_new = True
    if isinstance(of, ContainerObject):
        inner, base = of.inner, container_base(of.cls)
        if isinstance(inner, ListValue):
            items = list(inner.items)
        elif isinstance(inner, DictValue):
            pairs = [sequence_items(tx, pair) for pair in sequence_items(tx, of.call_method(tx, "items", [], {}))]
            entries = [(pair[0], pair[1]) for pair in pairs]
            by_new = base is dict
            args = [inner.factory or NONE] if base is collections.defaultdict else args
        elif isinstance(inner, SetValue):
            args, by_new = [ListValue(list(inner.elements.values()))], False
        elif asked is None:
            args = [inner]
    return Parts(cls, args, _state(tx, of, slots), items, entries, by_new)


def _has_new(cls: type) -> bool:
    found = find_in_class(cls, "__new__")
    return found is not None and isinstance(found[1], (types.FunctionType, staticmethod))


def _slots(tx: Tracer, of: ObjectValue) -> dict[str, Value]:
    names = [
        name
        for base in of.cls.__mro__
        for name, entry in vars(base).items()
        if type(entry) is types.MemberDescriptorType and base.__flags__ & (1 << 9)
    ]
    if names and of.origin is not None and not of.is_made:
        raise Unsupported("unknown-call", f"taking apart {of.describe()}, which has slots")
    return {name: value for name in names if (value := of.written.get(name)) is not None}


def _state(tx: Tracer, of: ObjectValue, slots: dict[str, Value]) -> Value:
    asked = _method(tx, of, "__getstate__")
    if asked is not None:
        return force(tx, asked.call(tx, [], {}))
    own: Value = NONE
    if not of.has_no_dict() or of.type() is _SPACE:
        held = of.get_attr(tx, "__dict__")
        contents = dict_of(held)
        if contents.entries:
            own = held if held is of else DictValue(dict(contents.entries))
    return TupleValue([own, DictValue.of(slots)]) if slots else own


def rebuilt(tx: Tracer, parts: Parts, copied: Copied, made_known: Callable[[Value], None]) -> Value:
    """Put an object together, of copies of its parts; ``made_known`` is told of it before it has its state."""
    args = [copied(a) for a in parts.args]
    made = force(tx, _instance(tx, parts.make, args) if parts.by_new else parts.make.call(tx, args, {}))
    made_known(made)
    if not is_none(parts.state):
        _set_state(tx, made, force(tx, copied(parts.state)))
    for item in parts.items:
        force(tx, made.get_attr(tx, "append")).call(tx, [copied(item)], {})
    for key, value in parts.entries:
        made.set_item(tx, force(tx, copied(key)), copied(value))
    return made


def _instance(tx: Tracer, cls: Value, args: Args) -> Value:
    """``cls.__new__(cls, *args)``."""
    held = cls.real() if cls.real() is not NotImplemented else cls.python(tx)
    found = find_in_class(held, "__new__")
    if _has_new(held) and found is not None:
        return force(tx, cls.get_attr(tx, "__new__")).call(tx, [cls, *args], {})
    base = container_base(held)
    if base is not None:
        return new_instance(tx, held, base, args, {})
    return NamespaceValue(held, None, NotImplemented) if held is _SPACE else ObjectValue(held, None, NotImplemented)


def _set_state(tx: Tracer, made: Value, state: Value) -> None:
    setter = _method(tx, made, "__setstate__")
    if setter is not None:
        setter.call(tx, [state], {})
        return
    if isinstance(made, PartialValue):
        made.builtin_method(tx, "__setstate__", [state], {})
        return
    own: Value = state
    slots: Value = NONE
    if isinstance(state, TupleValue) and len(state.items) == 2:
        own, slots = (force(tx, i) for i in state.items)
    if not is_none(own):
        into = force(tx, made.get_attr(tx, "__dict__"))
        for name, value in tx.entries(dict_of(own)).items():
            into.set_item(tx, Const(name), value)
    if not is_none(slots):
        for name, value in tx.entries(slots).items():
            made.set_attr(tx, name, value)


# copy.


def _is_atom(of: Value) -> bool:
    """Whether copies of it are it itself."""
    return isinstance(of, (Const, FunctionValue, ClassValue, BuiltinValue, MadeCache, RangeValue))


@special(copy.copy)
def _copy(tx: Tracer, args: Args, kwargs: Words) -> Value:
    of = force(tx, args[0])
    if (
        _is_atom(of)
        or isinstance(of, SliceValue)
        or (isinstance(of, TupleValue) and (of.cls is tuple or of.is_named()))
    ):
        return of
    if isinstance(of, ListValue):
        return ListValue(list(of.items), None, of.cls, of.maxlen)
    if isinstance(of, (DictValue, SetValue)):
        made = of.call_method(tx, "copy", [], {})
        if isinstance(of, DictValue) and isinstance(made, DictValue):
            made.attributes.update(of.attributes)
        return made
    own = _method(tx, of, "__copy__")
    if own is not None:
        return own.call(tx, [], {})
    if isinstance(of, ContainerObject) and container_base(of.cls) is collections.defaultdict:
        return force(tx, of.get_attr(tx, "copy")).call(tx, [], {})
    parts = parts_of(tx, of, 4)
    return rebuilt(tx, parts, lambda value: value, lambda made: None)


class Memo(DictValue):
    """The dict that ``deepcopy`` hands to ``__deepcopy__``: what was copied already, by ids."""

    def __init__(self) -> None:
        super().__init__({})
        self.copies: dict[int, tuple[Value, Value]] = {}
        """By the ids of values: the copy, and the value itself, whose id stays its own so."""

    def found(self, tx: Tracer, of: Value) -> Value | None:
        """The copy of a value, if there is one."""
        known = self.copies.get(id(of))
        if known is not None:
            return known[0]
        entry = self.entries.get(IdKey(tx, of)) if self.entries and of.is_mutable else None
        return None if entry is None else entry[1]


@special(copy.deepcopy)
def _deepcopy(tx: Tracer, args: Args, kwargs: Words) -> Value:
    given = dict(zip(("x", "memo"), args, strict=False)) | kwargs
    memo = force(tx, given.get("memo", NONE))
    if not isinstance(memo, Memo):
        if not is_none(memo) and (not isinstance(memo, DictValue) or memo.entries):
            raise Unsupported("unknown-call", "copy.deepcopy() with a memo of one's own")
        memo = Memo()
    return _deep(tx, force(tx, given["x"]), memo)


def _deep(tx: Tracer, of: Value, memo: Memo) -> Value:
    known = memo.found(tx, of)
    if known is not None:
        return known

    def deep(value: Value) -> Value:
        return _deep(tx, force(tx, value), memo)

    def keep(value: Value) -> None:
        memo.copies[id(of)] = (value, of)

    made: Value
    if _is_atom(of):
        return of
    own = _method(tx, of, "__deepcopy__")
    if own is not None:
        made = force(tx, own.call(tx, [memo], {}))
    elif isinstance(of, TensorValue) and not of.fake.requires_grad:
        made = of.call_method(tx, "clone", [], {})
    else:
        made = _copied_container(of, deep, keep) or rebuilt(tx, parts_of(tx, of, 4), deep, keep)
    keep(made)
    return made


def _stays(element: Value, copied: Value) -> bool:
    return isinstance(copied, Const) or copied is (element.known if isinstance(element, Lazy) else element)


def _copied_container(of: Value, deep: Copied, keep: Callable[[Value], None]) -> Value | None:
    """A builtin container with copies of what it holds; None of anything else."""
    if isinstance(of, ListValue):
        items = ListValue([], None, of.cls, of.maxlen)
        keep(items)
        items.items.extend(map(deep, list(of.items)))
        return items
    if isinstance(of, TupleValue):
        parts = [deep(i) for i in of.items]
        is_same = all(a is (b.known if hasattr(b, "known") else b) for a, b in zip(parts, of.items, strict=True))
        return of if is_same and of.cls is tuple else TupleValue(parts, of.cls)
    if isinstance(of, DictValue):
        entries = DictValue({}, None, of.cls, of.factory)
        keep(entries)
        for stands_for, (key, value) in list(of.entries.items()):
            copied_key = deep(key)
            if not isinstance(copied_key, Const) and copied_key is not key:
                raise Unsupported("unknown-call", "copy.deepcopy() of a dict whose keys are copied")
            entries.entries[stands_for] = (copied_key, deep(value))
        entries.attributes.update((name, deep(value)) for name, value in of.attributes.items())
        return entries
    if isinstance(of, SetValue) and all(_stays(e, deep(e)) for e in of.elements.values()):
        return SetValue(dict(of.elements), None, of.cls)
    return None


# Pickles.


class PickledValue(Value):
    """The bytes of a pickle whose contents are known as values: what was taken apart waits here to be put together."""

    def __init__(self, of: Value) -> None:
        self.of = of

    def type(self) -> type:
        return bytes

    def describe(self) -> str:
        return "bytes of a pickle"

    def truth(self, tx: Tracer) -> bool:
        return True

    def reconstruct(self, cg: Codegen) -> None:
        raise Unsupported("side-effect", "rebuilding a pickle after the graph")


class Taken(Value):
    """An object as a pickle holds it."""

    def __init__(self) -> None:
        self.parts: Parts | None = None
        self.is_begun = False
        """Whether what makes it is known, so that its state may hold it."""

    def type(self) -> type:
        return object


class _Pickling:
    """One pickle being written: what was met already is referred to."""

    def __init__(self, tx: Tracer, protocol: int) -> None:
        self.tx = tx
        self.protocol = protocol
        self.met: dict[int, tuple[Value, Value]] = {}

    def take(self, value: Value) -> Value:
        """What a pickle holds for a value."""
        of = force(self.tx, value)
        known = self.met.get(id(of))
        if known is not None:
            if isinstance(known[0], Taken) and not known[0].is_begun:
                raise Unsupported("unknown-call", f"pickle of {of.describe()}, which is made of itself")
            return known[0]
        if isinstance(of, (FunctionValue, ClassValue, BuiltinValue, PythonModule)):
            return self._by_name(of)
        if isinstance(of, (Const, RangeValue)):
            return of

        def keep(made: Value) -> None:
            self.met[id(of)] = (made, of)

        made = self._iterator(of) or _copied_container(of, self.take, keep)
        if made is None:
            made = Taken()
            keep(made)
            parts = parts_of(self.tx, of, self.protocol)
            make, args = self.take(parts.make), [self.take(a) for a in parts.args]
            made.is_begun = True
            made.parts = Parts(
                make,
                args,
                self.take(parts.state),
                [self.take(i) for i in parts.items],
                [(self.take(k), self.take(v)) for k, v in parts.entries],
                parts.by_new,
            )
        keep(made)
        return made

    def _by_name(self, of: Value) -> Value:
        """Functions and classes are looked up where they were defined."""
        real = of.real()
        module, name = getattr(real, "__module__", None), getattr(real, "__qualname__", None)
        found: Any = sys.modules.get(str(module))
        for part in str(name).split("."):
            found = getattr(found, part, None)
        if real is NotImplemented or found is not real or isinstance(real, types.BuiltinMethodType):
            is_function = isinstance(real, types.BuiltinFunctionType) and isinstance(real.__self__, types.ModuleType)
            if not is_function or found is not real:
                raise Unsupported("unknown-call", f"pickle of {of.describe()}")
        if isinstance(of, RealFunction) and of.origin is not None:
            self.tx.guard_object(real, of.origin, "it was pickled by its name")
        return of

    def _iterator(self, of: Value) -> Value | None:
        """An iterator with a copy of what it goes over; None of anything else."""
        if isinstance(of, KeyedIterator):
            rest = of.rest()
            return SequenceIterator([self.take(i) for i in rest], type(iter([])), ListValue([]))
        if type(of) is SequenceIterator and of.cls in _OVER_ITEMS:
            items = [self.take(i) for i in of.items]
            made = SequenceIterator(items, of.cls, None if of.source is None else ListValue(items))
            made.position = of.position
            return made
        if isinstance(of, RangeIterator):
            over = RangeIterator(of.value)
            over.position = of.position
            return over
        return None


_OVER_ITEMS: tuple[type, ...] = (type(iter([])), type(iter(())), type(iter("")), type(iter(b"")))


class _Unpickling:
    """One pickle being read."""

    def __init__(self, tx: Tracer) -> None:
        self.tx = tx
        self.made: dict[int, Value] = {}

    def give(self, of: Value) -> Value:
        """A new object for what a pickle holds."""
        known = self.made.get(id(of))
        if known is not None:
            return known

        def keep(made: Value) -> None:
            self.made[id(of)] = made

        made: Value
        if isinstance(of, Taken):
            assert of.parts is not None
            made = rebuilt(self.tx, of.parts, self.give, keep)
        elif type(of) is SequenceIterator:
            items = [self.give(i) for i in of.items]
            made = SequenceIterator(items, of.cls, None if of.source is None else ListValue(items))
            made.position = of.position
        elif isinstance(of, RangeIterator):
            made = RangeIterator(of.value)
            made.position = of.position
        else:
            made = _copied_container(of, self.give, keep) or of
        keep(made)
        return made


def _is_plain(tx: Tracer, value: Value, seen: set[int]) -> bool:
    """Whether its pickle is known byte by byte: plain data that holds no container twice that can be changed."""
    of = force(tx, value)
    if isinstance(of, (Const, RangeValue)):
        return True
    if not isinstance(of, (ListValue, TupleValue, DictValue, SetValue)) or of.type() not in _PLAIN:
        return False
    if id(of) in seen and not isinstance(of, TupleValue):
        return False
    seen.add(id(of))
    return all(_is_plain(tx, child, seen) for child in of.children())


_PLAIN = (list, tuple, dict, set, frozenset)


@special(pickle.dumps)
def _dumps(tx: Tracer, args: Args, kwargs: Words) -> Value:
    given = dict(zip(("obj", "protocol"), args, strict=False)) | kwargs
    if "obj" not in given or set(given) - {"obj", "protocol"}:
        return operations.fold_call(tx, pickle.dumps, args, kwargs, "pickle.dumps()")
    of = force(tx, given["obj"])
    if _is_plain(tx, of, set()):
        return operations.fold_call(tx, pickle.dumps, args, kwargs, "pickle.dumps()")
    number = force(tx, given.get("protocol", NONE)).python(tx)
    protocol = pickle.DEFAULT_PROTOCOL if number is None else pickle.HIGHEST_PROTOCOL if number < 0 else int(number)
    if protocol > pickle.HIGHEST_PROTOCOL:
        tx.fold(pickle.dumps, None, protocol)
    return PickledValue(_Pickling(tx, protocol).take(of))


@special(pickle.loads)
def _loads(tx: Tracer, args: Args, kwargs: Words) -> Value:
    given = force(tx, args[0]) if args else NONE
    if isinstance(given, PickledValue) and not kwargs:
        return _Unpickling(tx).give(given.of)
    if not isinstance(given, Const) or given.type() is not bytes:
        raise Unsupported("unknown-call", "pickle.loads() of what is not known")
    return tx.fold(_load_plain, given.value, **dict(zip(kwargs, tx.constants(kwargs.values()), strict=True)))


class _PlainUnpickler(pickle.Unpickler):
    """Makes nothing but plain data: objects of other classes each call makes anew, by code of their own."""

    def find_class(self, module: str, name: str) -> Any:
        found = super().find_class(module, name)
        if found not in _DATA:
            raise Unsupported("unknown-call", f"pickle.loads() of what holds {module}.{name}")
        return found


_DATA: tuple[Any, ...] = (
    set,
    frozenset,
    complex,
    range,
    collections.OrderedDict,
    collections.deque,
    collections.defaultdict,
    codecs.encode,
)


def _load_plain(data: bytes, **words: Any) -> Any:
    found = _PlainUnpickler(io.BytesIO(data), **words).load()
    seen: set[int] = set()
    todo = [found]
    while todo:
        part = todo.pop()
        if isinstance(part, (tuple, frozenset)):
            todo += part
        elif isinstance(part, (list, dict, set, collections.deque)):
            if id(part) in seen:
                raise Unsupported("unknown-call", "pickle.loads() of what holds one object twice")
            seen.add(id(part))
            todo += [x for pair in part.items() for x in pair] if isinstance(part, dict) else part
    return found
