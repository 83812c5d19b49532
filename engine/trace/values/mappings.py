"""Dicts of all kinds and their views."""

from __future__ import annotations

import collections
import gc
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from engine.ir.origin import Attr, EntryAt, Key, Origin, item_origin
from engine.ir.relation_guard import SameObject
from engine.ir.value_guard import DictKeys
from engine.trace.values.base import NONE, Const, Value, force, type_name
from engine.trace.values.refusals import is_iterable
from engine.trace.values.sequences import TupleValue, sequence_items
from engine.trace.values.sets import SetValue
from engine.trace.values.wrap import is_literal, makes, wraps

if TYPE_CHECKING:
    from engine.trace.codegen import Codegen
    from engine.trace.state import Tracer

Entry = tuple[Value, Value]


class DictValue(Value):
    """A dict: ``entries`` maps what stands for a key to (key, value), in order. ``cls`` may be a subclass of dict.

    A dict from outside may be one that nobody has looked into: ``read`` gives what it holds, and ``stores`` is what was set since.
    """

    __slots__ = (
        "attributes",
        "cls",
        "factory",
        "held_entries",
        "is_reordered",
        "is_stale",
        "moves",
        "origin",
        "placed",
        "read",
        "stores",
    )
    is_mutable = True

    def __init__(
        self,
        entries: dict[Any, Entry],
        origin: Origin | None = None,
        cls: type = dict,
        factory: Value | None = None,
        read: Callable[[], dict[Any, Entry]] | None = None,
    ) -> None:
        self.held_entries = entries
        self.read = read
        self.stores: dict[Any, Entry] = {}
        self.origin = origin
        self.cls = cls
        self.factory = factory
        self.attributes: dict[str, Value] = {}
        """Attributes that traced code set on an OrderedDict."""
        self.is_reordered = False
        """Whether a key of an OrderedDict was moved: its dict has another order."""
        self.is_stale = False
        """Whether a method of ``dict`` itself changed the keys of an OrderedDict, which does not know of that."""
        self.moves = 0
        """How often a key was added, taken out or moved."""
        self.placed: list[tuple[Any, int]] = []
        """Keys that were added or moved, with the number of moves by then: an iterator meets them after all others, in this order."""

    @property
    def entries(self) -> dict[Any, Entry]:
        """What it holds; asking for that takes its keys for granted."""
        if self.read is not None:
            read, self.read = self.read, None
            self.held_entries = read()
            for stands_for, (key, value) in self.stores.items():
                self._store(stands_for, key, value)
        return self.held_entries

    @entries.setter
    def entries(self, entries: dict[Any, Entry]) -> None:
        self.held_entries, self.read = entries, None

    def stored_unread(self, key: Value) -> Entry | None:
        """What was set for a key of a dict that nobody has looked into."""
        is_plain = self.read is not None and isinstance(key, Const) and type(key.value) in (str, int)
        return self.stores.get(key.value) if is_plain else None  # type: ignore[attr-defined]

    @classmethod
    def of(cls, values: Mapping[str, Value]) -> DictValue:
        """A plain new dict of values by name."""
        return cls({name: (Const(name), value) for name, value in values.items()})

    def type(self) -> type:
        return self.cls

    def describe(self) -> str:
        return "a dict that nobody has looked into" if self.read else f"{self.cls.__name__} of {len(self.entries)}"

    def python(self, tx: Tracer) -> Any:
        made = {force(tx, k).python(tx): force(tx, v).python(tx) for k, v in self.entries.values()}
        if issubclass(self.cls, collections.OrderedDict):
            return collections.OrderedDict(made)
        if self.cls is collections.defaultdict:
            return collections.defaultdict(None if self.factory is None else self.factory.python(tx), made)
        return made

    def children(self) -> list[Value]:
        entries = self.entries if self.read is None else self.stores
        return [*(part for entry in entries.values() for part in entry), *self.attributes.values()]

    def key(self, tx: Tracer) -> Any:
        return tx.raise_type_error(f"unhashable type: '{type_name(self.cls)}'")

    def graph_arg(self, tx: Tracer) -> tuple[Any, Any]:
        pairs = {force(tx, k).python(tx): force(tx, v).graph_arg(tx) for k, v in self.entries.values()}
        return {k: p[0] for k, p in pairs.items()}, {k: p[1] for k, p in pairs.items()}

    def truth(self, tx: Tracer) -> bool:
        return bool(self.entries)

    def length(self, tx: Tracer) -> Value:
        return Const(len(self.entries))

    def keys(self) -> list[Value]:
        """Its keys, in order."""
        self._check_order()
        return [k for k, _ in self.entries.values()]

    def values(self) -> list[Value]:
        """Its values, in order."""
        self._check_order()
        return [v for _, v in self.entries.values()]

    def _check_order(self) -> None:
        if self.is_stale:
            raise self.refuse("reading the order, which a method of dict itself left behind,")

    def iterate(self, tx: Tracer) -> Value:
        return DictView(self, "keys").iterate(tx)

    def contains(self, tx: Tracer, item: Value) -> bool:
        return self.stored_unread(item) is not None or item.key(tx) in self.entries

    def get_item(self, tx: Tracer, key: Value) -> Value:
        found = self.stored_unread(key) or self.entries.get(key.key(tx))
        if found is not None:
            return found[1]
        return self.make_missing(tx, key, self)

    def make_missing(self, tx: Tracer, key: Value, into: Value) -> Value:
        """What ``defaultdict.__missing__`` makes and sets as an item of ``into``; KeyError where nothing says how."""
        if self.factory is None or (isinstance(self.factory, Const) and self.factory.value is None):
            return tx.raise_missing_key(key)  # type: ignore[no-any-return]
        made = force(tx, self.factory).call(tx, [], {})
        into.set_item(tx, key, made)
        return made

    def set_item(self, tx: Tracer, key: Value, value: Value) -> None:
        self.put(tx, key.key(tx), key, value)

    def put(self, tx: Tracer, stands_for: Any, key: Value, value: Value) -> None:
        """Set the value of a key that was hashed already."""
        tx.mutating(self)
        if self.read is not None and type(stands_for) in (str, int):
            self.stores[stands_for] = (key, value)
        else:
            self._store(stands_for, key, value)

    def _store(self, stands_for: Any, key: Value, value: Value) -> None:
        from engine.trace.values.identity import stored

        old = self.entries.get(stands_for)
        self.entries[stands_for] = (key if old is None else old[0], value)
        if old is None:
            self._moved(stands_for)
        stored(stands_for)

    def _moved(self, stands_for: Any) -> None:
        self.moves += 1
        self.placed.append((stands_for, self.moves))

    def del_item(self, tx: Tracer, key: Value) -> None:
        self.pop(tx, key)

    def pop(self, tx: Tracer, key: Value, default: Value | None = None) -> Value:
        """Take a key out; its value, or the default, or KeyError."""
        stands_for = key.key(tx)
        if stands_for not in self.entries:
            if default is not None:
                return default
            tx.raise_missing_key(key)
        tx.mutating(self)
        self.moves += 1
        return self.entries.pop(stands_for)[1]

    def update(self, tx: Tracer, other: Value) -> None:
        """Add the entries of a mapping or of an iterable of pairs."""
        from engine.trace.values.mapping_subclasses import update_in_order

        tx.mutating(self)
        given: Any = force(tx, other)
        if type(given) is DictValue and given.cls is dict and type(self).set_item is DictValue.set_item:
            for stands_for, (key, value) in list(given.entries.items()):  # which are not hashed again
                self.put(tx, stands_for, key, value)
            return
        if self.cls is collections.OrderedDict:
            update_in_order(tx, self, "update", [other], {})
            return
        for key, value in entries_of(tx, other):
            self.set_item(tx, force(tx, key), value)

    def get_attr(self, tx: Tracer, name: str) -> Value:
        from engine.trace.values.methods import MethodOf

        if name == "__class__":
            return tx.fixed(self.cls)
        if name == "default_factory" and self.cls is collections.defaultdict:
            return self.factory or NONE
        if name in self.attributes:
            return self.attributes[name]
        if name == "__dict__" and self.is_ordered:
            return self._own_dict(tx)
        if self.lacks(name):
            tx.raise_error(AttributeError, f"'{type_name(self.cls)}' object has no attribute '{name}'")
        return MethodOf(self, name)

    def _own_dict(self, tx: Tracer) -> Value:
        from engine.trace.values.instance_dicts import InstanceDict

        if self.origin is not None:
            raise self.refuse("reading __dict__")
        made: Value = InstanceDict(tx, self)
        return made

    def attributes_now(self, tx: Tracer) -> dict[Any, Entry]:
        """What the ``__dict__`` of an OrderedDict holds, as entries of a dict."""
        return {name: (Const(name), value) for name, value in self.attributes.items()}

    def write(self, tx: Tracer, name: str, value: Value | None) -> None:
        """Set (or with None delete) what an OrderedDict itself holds under a name."""
        tx.mutating(self)
        self.attributes.pop(name, None)
        if value is not None:
            self.attributes[name] = value

    def set_attr(self, tx: Tracer, name: str, value: Value) -> None:
        if name == "default_factory" and self.cls is collections.defaultdict and self.origin is None:
            tx.mutating(self)
            self.factory = force(tx, value)
            return None
        if self.cls is not collections.OrderedDict or self.origin is not None or hasattr(self.cls, name):
            return super().set_attr(tx, name, value)
        tx.mutating(self)
        self.attributes[name] = value
        return None

    def call_method(self, tx: Tracer, name: str, args: list[Value], kwargs: dict[str, Value]) -> Value:
        from engine.trace.operations import operator_method

        args = [force(tx, a) for a in args]
        match name, len(args):
            case (("keys" | "values" | "items"), 0):
                return DictView(self, name)
            case "get", (1 | 2):
                found = self.entries.get(args[0].key(tx))
                return found[1] if found is not None else args[1] if len(args) == 2 else NONE
            case "pop", (1 | 2):
                return self.pop(tx, args[0], args[1] if len(args) == 2 else kwargs.get("default"))
            case "popitem", 0:
                return self._popitem(tx, kwargs.get("last"))
            case "popitem", 1 if self.is_ordered:
                return self._popitem(tx, args[0])
            case "setdefault", (1 | 2):
                stands_for = args[0].key(tx)
                if stands_for not in self.entries:
                    self.put(tx, stands_for, args[0], args[1] if len(args) == 2 else kwargs.get("default", NONE))
                return self.entries[stands_for][1]
            case "__missing__", 1 if self.cls is collections.defaultdict:
                return self.make_missing(tx, args[0], self)
            case "__init__", (1 | 2) if issubclass(self.cls, collections.defaultdict):
                tx.mutating(self)
                self.factory = args[0]
                return self.call_method(tx, "update", args[1:], kwargs)
            case (("update" | "__init__"), (0 | 1)):
                for other in args:
                    self.update(tx, other)
                for word, value in kwargs.items():
                    self.set_item(tx, Const(word), value)
                return NONE
            case "__init__", count if self.cls is not collections.defaultdict:
                tx.fold(dict.__init__, {}, *[()] * count)
            case "clear", 0:
                tx.mutating(self)
                self.moves += 1
                self.entries.clear()
                return NONE
            case "__or__" | "__ror__", 1:
                return self._merged(tx, args[0], reflected=name == "__ror__")
            case "copy" | "__copy__", 0:
                return DictValue(dict(self.entries), None, self.cls, self.factory)
            case "fromkeys", _:
                return force(tx, tx.fixed(self.cls.fromkeys)).call(tx, args, kwargs)  # type: ignore[attr-defined]
            case "__contains__", 1:
                return Const(self.contains(tx, args[0]))
            case "__getitem__", 1:
                return self.get_item(tx, args[0])
            case "__setitem__", 2:
                self.set_item(tx, args[0], args[1])
                return NONE
            case "__len__", 0:
                return self.length(tx)
            case "__iter__", 0:
                return self.iterate(tx)
            case "__reversed__", 0:
                return force(tx, tx.fixed(reversed).call(tx, [self], {}))
            case "move_to_end", _ if self.is_ordered:
                return self._move_to_end(tx, args, kwargs)
            case "__reduce__", 0 if self.cls is collections.OrderedDict:
                return reduced(tx, self, self._own_dict(tx) if self.attributes else NONE)
        return operator_method(tx, self, name, args, kwargs)

    def _merged(self, tx: Tracer, other: Value, *, reflected: bool) -> Value:
        """``self.__or__(other)`` called by its name."""
        from engine.trace.operations import binary

        if not issubclass(other.type(), dict):
            return Const(NotImplemented)
        return binary(tx, "|", other, self) if reflected else binary(tx, "|", self, other)

    @property
    def is_ordered(self) -> bool:
        """Whether its methods are those of ``OrderedDict``."""
        return issubclass(self.cls, collections.OrderedDict)

    def _popitem(self, tx: Tracer, last: Value | None) -> Value:
        if not self.entries:
            tx.raise_error(KeyError, "dictionary is empty" if self.is_ordered else "popitem(): dictionary is empty")
        self._check_order()
        at_end = last is None or force(tx, last).truth(tx)
        stands_for = next(reversed(self.entries)) if at_end else next(iter(self.entries))
        tx.mutating(self)
        self.moves += 1
        return TupleValue(list(self.entries.pop(stands_for)))

    def _move_to_end(self, tx: Tracer, args: list[Value], kwargs: dict[str, Value]) -> Value:
        given = dict(zip(("key", "last"), args, strict=False)) | kwargs
        if "key" not in given or len(args) + len(kwargs) != len(given) or not given.keys() <= {"key", "last"}:
            tx.fold(collections.OrderedDict({None: 1}).move_to_end, *[None] * len(args), **dict.fromkeys(kwargs))
        key = force(tx, given["key"])
        at_end = force(tx, given.get("last", Const(True))).truth(tx)
        stands_for = key.key(tx)
        if stands_for not in self.entries:
            tx.raise_missing_key(key)
        if stands_for == (next(reversed(self.entries)) if at_end else next(iter(self.entries))):
            return NONE
        self._check_order()
        self.is_reordered = True
        tx.mutating(self)
        self._moved(stands_for)
        entry = self.entries.pop(stands_for)
        rest = dict(self.entries)
        self.entries = {**rest, stands_for: entry} if at_end else {stands_for: entry, **rest}
        return NONE

    def reconstruct(self, cg: Codegen) -> None:
        self._check_order()
        if self.cls is collections.defaultdict:
            cg.out.callable(lambda: cg.const(self.cls))
            cg.load(self.factory or NONE)
            self._build(cg)
            cg.out.call(2)
            return
        if self.cls is not dict:
            cg.out.callable(lambda: cg.const(self.cls))
            self._build(cg)
            cg.out.call(1)
            self._attach(cg)
            return
        if cg.is_reaching(self):
            cg.out.emit("BUILD_MAP", 0)
            cg.remember(self)
            cg.fill_later(self)
            return
        self._build(cg)

    def _attach(self, cg: Codegen) -> None:
        """Set the attributes on the dict on top of the stack."""
        for name, value in self.attributes.items():
            cg.out.emit("COPY", 1)
            cg.load(value)
            cg.out.emit("SWAP", 2)
            cg.out.emit("STORE_ATTR", name)

    def _build(self, cg: Codegen) -> None:
        from engine.trace.values.identity import check_rebuilt

        check_rebuilt(self.entries, self.cls.__name__)
        for key, value in self.entries.values():
            cg.load(key)
            cg.load(value)
        cg.out.emit("BUILD_MAP", len(self.entries))

    def fill(self, cg: Codegen) -> None:
        """Put the present contents into the existing dict on top of the stack, and pop it."""
        from engine.trace.support import add_entries, refill_dict, refill_ordered
        from engine.trace.values.identity import check_rebuilt

        if self.read is not None:
            cg.helper(add_entries, 1)
            self._fill_with(cg, [key for key, _ in self.stores.values()], [value for _, value in self.stores.values()])
            return
        check_rebuilt(self.entries, self.cls.__name__)
        cg.helper(refill_ordered if issubclass(self.cls, collections.OrderedDict) else refill_dict, 1)
        self._fill_with(cg, self.keys(), self.values())

    def _fill_with(self, cg: Codegen, keys: list[Value], values: list[Value]) -> None:
        for part in (keys, values):
            cg.load_all(part)
            cg.out.emit("BUILD_LIST", len(part))
        cg.out.call(3)
        cg.out.emit("POP_TOP")


def reduced(tx: Tracer, of: Value, state: Value) -> Value:
    """What ``OrderedDict.__reduce__`` tells of an instance with this state."""
    pairs = force(tx, of.call_method(tx, "items", [], {})).iterate(tx)
    return TupleValue([tx.fixed(of.type()), TupleValue([]), state, NONE, pairs])


def entries_of(tx: Tracer, other: Value) -> list[Entry]:
    """(key, value) pairs of a mapping, or of an iterable of pairs."""
    other = force(tx, other)
    if isinstance(other, DictValue):
        return list(other.entries.values())
    if isinstance(other, DictView) and other.kind != "items":
        raise other.refuse("reading pairs")
    own = getattr(other, "inner", None)
    if isinstance(own, DictValue) and getattr(other.type(), "__iter__", None) is dict.__iter__:
        return list(own.entries.values())  # what a subclass of dict makes of ``keys`` is not asked
    if hasattr(other.type(), "keys") or has_keys(tx, other):
        keys = sequence_items(tx, force(tx, other.get_attr(tx, "keys")).call(tx, [], {}))
        return [(k, force(tx, other).get_item(tx, force(tx, k))) for k in keys]
    return [_pair(tx, n, force(tx, p)) for n, p in enumerate(sequence_items(tx, other))]


def has_keys(tx: Tracer, of: Value) -> bool:
    """Whether an instance itself has what makes it a mapping."""
    from engine.trace.values.objects import ObjectValue

    return isinstance(of, ObjectValue) and of.own_attr(tx, "keys") is not None


def _pair(tx: Tracer, index: int, value: Value) -> Entry:
    if not is_iterable(value):
        tx.raise_type_error(f"cannot convert dictionary update sequence element #{index} to a sequence")
    parts = list(sequence_items(tx, value))
    if len(parts) != 2:
        text = f"dictionary update sequence element #{index} has length {len(parts)}; 2 is required"
        tx.raise_error(ValueError, text)
    return parts[0], parts[1]


class DictView(Value):
    """``d.keys()``, ``d.values()``, ``d.items()``: a window on the dict."""

    def __init__(self, of: DictValue, kind: str, origin: Origin | None = None) -> None:
        self.of = of
        self.kind = kind
        self.origin = origin

    def type(self) -> type:
        of: Any = collections.OrderedDict() if self.of.is_ordered else {}
        return type(getattr(of, self.kind)())

    def items(self) -> list[Value]:
        """What iterating gives now."""
        self.of.keys()
        match self.kind:
            case "keys":
                return self.of.keys()
            case "values":
                return self.of.values()
            case _:
                return [TupleValue([k, v]) for k, v in self.of.entries.values()]

    def python(self, tx: Tracer) -> Any:
        return getattr(self.of.python(tx), self.kind)()

    def length(self, tx: Tracer) -> Value:
        return self.of.length(tx)

    def truth(self, tx: Tracer) -> bool:
        return self.of.truth(tx)

    def iterate(self, tx: Tracer) -> Value:
        from engine.trace.values.iterators import KeyedIterator

        self.of.keys()
        kind = collections.OrderedDict if issubclass(self.of.cls, collections.OrderedDict) else dict
        what = "OrderedDict" if kind is collections.OrderedDict else "dictionary"
        cls = type(iter(getattr(kind(), self.kind)()))
        return KeyedIterator(list(self.of.entries), cls, self._read, lambda: list(self.of.entries), what, self, self.of)

    def _read(self, key: Any) -> Value | None:
        entry = self.of.entries.get(key)
        if entry is None:
            return None
        return TupleValue(list(entry)) if self.kind == "items" else entry[self.kind == "values"]

    def contains(self, tx: Tracer, item: Value) -> bool:
        from engine.trace.operations import same_or_equal

        if self.kind == "keys":
            return self.of.contains(tx, item)
        return any(same_or_equal(tx, force(tx, i), item) for i in self.items())

    def get_attr(self, tx: Tracer, name: str) -> Value:
        from engine.trace.values.methods import MethodOf

        return MethodOf(self, name)

    def call_method(self, tx: Tracer, name: str, args: list[Value], kwargs: dict[str, Value]) -> Value:
        if name == "__iter__":
            return self.iterate(tx)
        if name == "__reversed__" and not args:
            return force(tx, tx.fixed(reversed).call(tx, [self], {}))
        if name == "isdisjoint" and self.kind == "keys":
            return SetValue.of(tx, self.items()).call_method(tx, name, args, kwargs)
        from engine.trace.operations import operator_method

        return operator_method(tx, self, name, args, kwargs)

    def children(self) -> list[Value]:
        return [self.of]

    def reconstruct(self, cg: Codegen) -> None:
        def load() -> None:
            cg.load(self.of)
            cg.out.attribute(self.kind)

        cg.out.callable(load)
        cg.out.call(0)


def _key_value(tx: Tracer, real: Any, key: Any, index: int, origin: Origin) -> Value:
    return Const(key) if is_literal(key) else tx.wrap(key, Key(origin, index))


@wraps(dict, collections.OrderedDict, collections.defaultdict)
def _dict(tx: Tracer, real: dict[Any, Any], origin: Origin) -> Value:
    owner = tx.namespaces.get(id(real))
    if owner is not None and owner.origin is not None:
        why = "it holds the attributes of an object"
        tx.guard(SameObject(origin, Attr(owner.origin, "__dict__"), True, cause=tx.cause(why)))
        return owner.get_attr(tx, "__dict__")
    if type(real) is dict:
        tx.guard_type(real, origin, "it was used as a dict")
        return DictValue({}, origin, read=lambda: _entries(tx, real, origin))
    return dict_value(tx, real, origin)


def dict_value(tx: Tracer, real: dict[Any, Any], origin: Origin) -> DictValue:
    """The value for a real dict, guarded by its keys."""
    entries = _entries(tx, real, origin)
    factory = None
    if isinstance(real, collections.defaultdict):
        factory = tx.wrap(real.default_factory, Attr(origin, "default_factory"))
    return DictValue(entries, origin, type(real), factory)


def _entries(tx: Tracer, real: dict[Any, Any], origin: Origin) -> dict[Any, Entry]:
    """What a real dict holds, guarded by its keys."""
    from engine.trace.values.identity import HashedKey
    from engine.trace.values.tensor import TensorValue

    why = "its keys decided what was traced"
    tx.guard_type(real, origin, why)
    pairs = _pairs_held(real)
    tx.guard(DictKeys(origin, tuple(key for key, _ in pairs), cause=tx.cause(why)))
    entries: dict[Any, Entry] = {}
    for n, (key, item) in enumerate(pairs):
        key_value = _key_value(tx, real, key, n, origin)
        stands_for = _hashed(tx, entries, real, key, key_value)
        is_hashed = isinstance(stands_for, (HashedKey, TensorValue)) and isinstance(real, dict)
        reached = EntryAt(origin, n) if is_hashed else item_origin(real, origin, key)
        entries[stands_for] = (key_value, tx.lazy(item, reached))
    return entries


def _pairs_held(real: Any) -> list[tuple[Any, Any]]:
    """What a real dict holds, in its order, never through methods that Python code overrides."""
    from engine.trace.signals import Unsupported

    base: Any = next(b for b in (collections.OrderedDict, dict, type(real)) if isinstance(real, b))
    try:
        return list(base.items(real))
    except KeyError:  # of an OrderedDict that was changed past its own methods
        raise Unsupported("unsupported-operation", "a dict that does not find its own keys") from None


def _hashed(tx: Tracer, entries: dict[Any, Entry], real: Any, key: Any, value: Value) -> Any:
    """What stands for a key of a real dict, which does not hash its keys again: what doing so now would change is left to Python."""
    from engine.trace.signals import Unsupported, UserException
    from engine.trace.values.identity import HashedKey, stored, unchanging

    try:
        with unchanging(tx, f"{value.type().__name__}.__hash__ or __eq__"):
            stands_for = stored(value.key(tx))
            is_known = stands_for in entries
    except UserException as error:
        raise Unsupported("unsupported-operation", "a dict with a key whose __hash__ or __eq__ raises") from error
    if is_known or (isinstance(stands_for, HashedKey) and not _finds(real, key)):
        raise Unsupported("unsupported-operation", "a dict with a key whose hash has changed")
    return stands_for


def _finds(real: Any, key: Any) -> bool:
    try:
        return key in real
    except Exception:  # of the key's own methods
        return False


_VIEWS: dict[type, tuple[type, str]] = {
    type(getattr(cls(), kind)()): (cls, kind)
    for cls in (dict, collections.OrderedDict)
    for kind in ("keys", "values", "items")
}


@wraps(*_VIEWS)
def _view(tx: Tracer, real: Any, origin: Origin) -> Value:
    tx.guard_type(real, origin, "what it shows of a dict was used")
    tx.viewed.update(map(id, gc.get_referents(real)))
    cls, kind = _VIEWS[type(real)]
    of = dict_value(tx, real.mapping, Attr(origin, "mapping"))
    if cls is collections.OrderedDict:
        of.cls = cls
    return DictView(of, kind, origin)


@makes(dict, collections.OrderedDict, collections.defaultdict)
def _make_dict(tx: Tracer, value: dict[Any, Any]) -> Value:
    entries: dict[Any, Entry] = {}
    for k, v in value.items():
        key = tx.from_python(k)
        entries[key.key(tx)] = (key, tx.from_python(v))
    factory = tx.from_python(value.default_factory) if isinstance(value, collections.defaultdict) else None
    return DictValue(entries, None, type(value), factory)
