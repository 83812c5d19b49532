"""Variables for dict, OrderedDict, defaultdict and their views."""

from __future__ import annotations

import collections
import gc
import sys
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch

from engine.frame_code.codegen_runtime.containers import add_entries, refill_dict, refill_ordered
from engine.ir.guards.aliasing import SameObject
from engine.ir.guards.python_values import DictKeysMatch, LengthMatch
from engine.ir.introspection.python_operators import Operator
from engine.ir.register_once import register_each
from engine.ir.sources.attributes import AttrSource
from engine.ir.sources.base import GlobalsNamespace, Source
from engine.ir.sources.containers import DictKeysSource, DictValuesSource, GetItemSource, item_source
from engine.trace.annotations import PyCodegen, Tracer
from engine.trace.exc import BreakGraph, Unsupported, UserException
from engine.trace.operators.arithmetic import identical_or_equal
from engine.trace.operators.operand import OperatorResult
from engine.trace.variables.base import NONE, Args, ConstantVariable, Kwargs, Variable, is_none, realize
from engine.trace.variables.builder import is_literal, register_builder, register_sourceless_builder
from engine.trace.variables.callables.methods import builtin_attribute
from engine.trace.variables.callables.reconstruct_calls import emit_store_attributes
from engine.trace.variables.containers.dict_contents import DictContents, DictEntry
from engine.trace.variables.containers.dict_views import DictViewVariable
from engine.trace.variables.containers.iterators import iterator_of
from engine.trace.variables.containers.method_table import MethodTable
from engine.trace.variables.containers.sequences import TupleVariable, sequence_items
from engine.trace.variables.objects.globals_dict import GlobalsDictVariable
from engine.trace.variables.objects.id_and_hash import (
    UserHashKey,
    check_keys_rebuildable,
    forbid_side_effects,
    mark_stored,
)
from engine.trace.variables.stdlib.string_format import entry_proxies, format_proxy

ORDERED_DICT_ATTRIBUTES: dict[str, Callable[[Any, Any], Variable]] = {}
"""Attributes of an OrderedDict that are more than methods, by name: ``__dict__``."""


class DictVariable(DictContents):
    """A dict: ``entries`` maps hash keys to (key, value), in order; ``cls`` may be a subclass.

    The contents of an external dict load lazily: ``load_entries`` returns its entries on first use. Until then
    ``pending_stores`` holds only the items set during tracing.
    """

    mutation_words = "contents of the {} are replaced"

    def pytree_parts(self, tx: Tracer) -> tuple[type, tuple[Any, ...], list[Variable]] | None:
        keys = tuple(realize(tx, k).as_python_constant(tx) for k in list(self.keys()))
        return self.cls, keys, list(self.values())

    @property
    def dict_contents(self) -> DictVariable:
        return self

    @classmethod
    def from_str_keys(cls, values: Mapping[str, Variable]) -> DictVariable:
        """Build a new plain dict from values by string key."""
        return cls({name: (ConstantVariable(name), value) for name, value in values.items()})

    def format_contents(self, tx: Tracer, proxies: dict[int, Any]) -> Any:
        if self.cls not in (dict, collections.OrderedDict, collections.defaultdict):
            return None
        proxy: Any = self.cls()
        if self.cls is collections.defaultdict:
            proxy.default_factory = None if self.default_factory is None else format_proxy(tx, self.default_factory)
        proxies[id(self)] = proxy
        proxy.update(entry_proxies(tx, self.entries.values()))
        return proxy

    def as_python_constant(self, tx: Tracer) -> Any:
        constant = {
            realize(tx, k).as_python_constant(tx): realize(tx, v).as_python_constant(tx)
            for k, v in self.entries.values()
        }
        if issubclass(self.cls, collections.OrderedDict):
            return collections.OrderedDict(constant)
        if self.cls is collections.defaultdict:
            return collections.defaultdict(
                None if self.default_factory is None else self.default_factory.as_python_constant(tx), constant
            )
        return constant

    def as_node_arg(self, tx: Tracer) -> tuple[Any, Any]:
        pairs = {
            realize(tx, k).as_python_constant(tx): realize(tx, v).as_node_arg(tx) for k, v in self.entries.values()
        }
        return {k: p[0] for k, p in pairs.items()}, {k: p[1] for k, p in pairs.items()}

    def get_iterator(self, tx: Tracer) -> Variable:
        return DictViewVariable(self, "keys").get_iterator(tx)

    def binary(self, tx: Tracer, op: Operator, right: Variable) -> OperatorResult:
        return _merge(op, self, self, right.dict_contents)

    def reflected(self, tx: Tracer, op: Operator, left: Variable) -> OperatorResult:
        return _merge(op, self, left.dict_contents, self)

    def inplace(self, tx: Tracer, op: Operator, right: Variable) -> OperatorResult:
        if op.symbol != "|=":
            return NotImplemented
        self.update(tx, right)
        return self

    def compare(self, tx: Tracer, op: Operator, right: Variable) -> OperatorResult:
        other = right.dict_contents
        if not op.is_equality or other is None:
            return NotImplemented
        return ConstantVariable(_equal_dicts(tx, self, other) == (op.symbol == "=="))

    def contains(self, tx: Tracer, item: Variable) -> bool:
        return self.pending_store(item) is not None or item.hash_key(tx) in self.entries

    def get_item(self, tx: Tracer, key: Variable) -> Variable:
        item = self.pending_store(key) or self.entries.get(key.hash_key(tx))
        if item is not None:
            return item[1]
        return self.call_default_factory(tx, key, self)

    def call_default_factory(self, tx: Tracer, key: Variable, into: Variable) -> Variable:
        """Call the default factory for ``key`` and store the result in ``into``.

        Implements ``defaultdict.__missing__``. Raises KeyError if there is no factory.
        """
        if self.default_factory is None or is_none(self.default_factory):
            return tx.raise_key_error(key)
        default = realize(tx, self.default_factory).call(tx, [], {})
        into.set_item(tx, key, default)
        return default

    def set_item(self, tx: Tracer, key: Variable, value: Variable) -> None:
        self.set_hashed_item(tx, key.hash_key(tx), key, value)

    def del_item(self, tx: Tracer, key: Variable) -> None:
        self.pop(tx, key)

    def update(self, tx: Tracer, other: Variable) -> None:
        """Add the entries of a mapping or of an iterable of pairs."""
        tx.side_effects.record_mutation(self)
        added: Any = realize(tx, other)
        if type(added) is DictVariable and added.cls is dict and type(self).set_item is DictVariable.set_item:
            # Copying from a dict does not hash the keys again.
            for hash_key, (key, value) in list(added.entries.items()):
                self.set_hashed_item(tx, hash_key, key, value)
            return
        iterate = iterate_pairs if self.cls is collections.OrderedDict else mapping_entries
        for key, value in iterate(tx, added):
            self.set_item(tx, realize(tx, key), value)

    def get_attr(self, tx: Tracer, name: str) -> Variable:
        if name == "default_factory" and self.cls is collections.defaultdict:
            return self.default_factory or NONE
        if name in self.attributes:
            return self.attributes[name]
        if self.is_ordered and name in ORDERED_DICT_ATTRIBUTES:
            return ORDERED_DICT_ATTRIBUTES[name](tx, self)
        return builtin_attribute(tx, self, name)

    def set_attr(self, tx: Tracer, name: str, value: Variable) -> None:
        if name == "default_factory" and self.cls is collections.defaultdict and self.source is None:
            tx.side_effects.record_mutation(self)
            self.default_factory = realize(tx, value)
            return None
        if self.cls is not collections.OrderedDict or self.source is not None or hasattr(self.cls, name):
            return super().set_attr(tx, name, value)
        tx.side_effects.record_mutation(self)
        self.attributes[name] = value
        return None

    def call_method(self, tx: Tracer, name: str, args: Args, kwargs: Kwargs) -> Variable:
        return DICT_METHODS.call(self, tx, name, args, kwargs)

    def reconstruct(self, cg: PyCodegen) -> None:
        if self.subclass_instance is not None:
            cg.load(self.subclass_instance)
            return
        if self.cls is collections.defaultdict:
            cg.body.callable(lambda: cg.load_const(self.cls))
            cg.load(self.default_factory or NONE)
            _emit_build_map(cg, self)
            cg.body.call(2)
            return
        if self.cls is not dict:
            cg.body.callable(lambda: cg.load_const(self.cls))
            _emit_build_map(cg, self)
            cg.body.call(1)
            emit_store_attributes(cg, self.attributes.items())
            return
        if cg.is_cyclic(self):
            cg.body.emit("BUILD_MAP", 0)
            cg.defer_fill(self)
            return
        _emit_build_map(cg, self)

    def fill(self, cg: PyCodegen) -> None:
        """Emit code that pops the existing dict on the stack and replaces its contents.

        If the dict was never loaded, the code only adds the new items.
        """
        if self.load_entries is not None:
            update: Any = add_entries
            entries = self.pending_stores
        else:
            check_keys_rebuildable(self.entries, self.cls.__name__)
            update = refill_ordered if issubclass(self.cls, collections.OrderedDict) else refill_dict
            entries = self.entries
        keys, values = zip(*entries.values(), strict=True) if entries else ((), ())
        cg.pop_into_call(update, TupleVariable(list(keys)), TupleVariable(list(values)))


def _emit_build_map(cg: PyCodegen, of: DictVariable) -> None:
    check_keys_rebuildable(of.entries, of.cls.__name__)
    for key, value in of.entries.values():
        cg.load(key)
        cg.load(value)
    cg.body.emit("BUILD_MAP", len(of.entries))


def _merge(op: Operator, of: DictVariable, left: DictVariable | None, right: DictVariable | None) -> OperatorResult:
    """Return the new dict of ``left | right``, of the class of the operand whose method runs."""
    if op.symbol != "|" or left is None or right is None:
        return NotImplemented
    if not all(issubclass(side.cls, dict) for side in (left, right)):
        return NotImplemented
    merged = DictVariable(dict(left.entries), None, of.cls, of.default_factory)
    merged.entries.update(right.entries)
    return merged


def _equal_dicts(tx: Tracer, left: DictVariable, right: DictVariable) -> bool:
    if set(left.entries) != set(right.entries):
        return False
    for key, (_, value) in left.entries.items():
        if not identical_or_equal(tx, realize(tx, value), realize(tx, right.entries[key][1])):
            return False
    return not (left.is_ordered and right.is_ordered) or list(left.entries) == list(right.entries)


# Methods of dict, OrderedDict and defaultdict.

DICT_METHODS = MethodTable()


def _is_ordered(of: DictVariable) -> bool:
    return of.is_ordered


@register_each(DICT_METHODS.method, "keys", "values", "items")
def _view_of_dict(kind: str, self: DictVariable, tx: Tracer) -> Variable:
    return DictViewVariable(self, kind)


@DICT_METHODS.method("get")
def _get(self: DictVariable, tx: Tracer, key: Variable, default: Variable = NONE, /) -> Variable:
    item = self.entries.get(key.hash_key(tx))
    return default if item is None else item[1]


@DICT_METHODS.method("pop")
def _pop(self: DictVariable, tx: Tracer, key: Variable, default: Variable | None = None) -> Variable:
    return self.pop(tx, key, default)


@DICT_METHODS.method("popitem")
def _popitem(self: DictVariable, tx: Tracer) -> Variable:
    return _popitem_at(self, tx, ConstantVariable(True))


@DICT_METHODS.method("popitem", condition=_is_ordered)
def _popitem_at(self: DictVariable, tx: Tracer, last: Variable) -> Variable:
    if not self.entries:
        tx.raise_error(KeyError, "dictionary is empty" if self.is_ordered else "popitem(): dictionary is empty")
    at_end = realize(tx, last).is_truthy(tx)
    hash_key = next(reversed(self.entries)) if at_end else next(iter(self.entries))
    tx.side_effects.record_mutation(self)
    self.mutation_count += 1
    return TupleVariable(list(self.entries.pop(hash_key)))


@DICT_METHODS.method("setdefault")
def _setdefault(self: DictVariable, tx: Tracer, key: Variable, default: Variable = NONE) -> Variable:
    hash_key = key.hash_key(tx)
    if hash_key not in self.entries:
        self.set_hashed_item(tx, hash_key, key, default)
    return self.entries[hash_key][1]


@DICT_METHODS.method("__missing__", condition=lambda of: of.cls is collections.defaultdict)
def _missing(self: DictVariable, tx: Tracer, key: Variable) -> Variable:
    return self.call_default_factory(tx, key, self)


@DICT_METHODS.method("__init__", mutates=True, condition=lambda of: issubclass(of.cls, collections.defaultdict))
def _init_default_dict(
    self: DictVariable, tx: Tracer, factory: Variable, /, *args: Variable, **kwargs: Variable
) -> Variable:
    self.default_factory = factory
    return self.call_method(tx, "update", list(args), kwargs)


@DICT_METHODS.method("update", "__init__")
def _update(self: DictVariable, tx: Tracer, other: Variable | None = None, /, **kwargs: Variable) -> None:
    if other is not None:
        self.update(tx, other)
    for keyword, value in kwargs.items():
        self.set_item(tx, ConstantVariable(keyword), value)


@DICT_METHODS.method("__init__", condition=lambda of: of.cls is not collections.defaultdict)
def _init(self: DictVariable, tx: Tracer, /, *args: Variable, **kwargs: Variable) -> Variable:
    return tx.fold_constant(dict.__init__, {}, *[()] * len(args))


@DICT_METHODS.method("clear", mutates=True)
def _clear(self: DictVariable, tx: Tracer) -> None:
    self.mutation_count += 1
    self.entries.clear()


@DICT_METHODS.method("copy", "__copy__")
def _copy(self: DictVariable, tx: Tracer) -> Variable:
    return DictVariable(dict(self.entries), None, self.cls, self.default_factory)


@DICT_METHODS.method("fromkeys")
def _fromkeys(self: DictVariable, tx: Tracer, *args: Variable, **kwargs: Variable) -> Variable:
    return realize(tx, tx.wrap_static(self.cls.fromkeys)).call(tx, list(args), kwargs)  # type: ignore[attr-defined]


@DICT_METHODS.method("move_to_end", condition=_is_ordered)
def _move_to_end(self: DictVariable, tx: Tracer, *args: Variable, **kwargs: Variable) -> None:
    arguments = dict(zip(("key", "last"), args, strict=False)) | kwargs
    if "key" not in arguments or len(args) + len(kwargs) != len(arguments) or not arguments.keys() <= {"key", "last"}:
        tx.fold_constant(collections.OrderedDict({None: 1}).move_to_end, *[None] * len(args), **dict.fromkeys(kwargs))
    key = realize(tx, arguments["key"])
    at_end = realize(tx, arguments.get("last", ConstantVariable(True))).is_truthy(tx)
    hash_key = key.hash_key(tx)
    if hash_key not in self.entries:
        tx.raise_key_error(key)
    if hash_key == (next(reversed(self.entries)) if at_end else next(iter(self.entries))):
        return
    self.was_reordered = True
    tx.side_effects.record_mutation(self)
    self.mutation_count += 1
    entry = self.entries.pop(hash_key)
    entries = dict(self.entries)
    self.entries = {**entries, hash_key: entry} if at_end else {hash_key: entry, **entries}


@DICT_METHODS.method("__reduce__", condition=lambda of: of.cls is collections.OrderedDict)
def _reduce(self: DictVariable, tx: Tracer) -> Variable:
    return ordered_dict_reduce(tx, self, self.get_attr(tx, "__dict__") if self.attributes else NONE)


def ordered_dict_reduce(tx: Tracer, of: Variable, state: Variable) -> Variable:
    """Return the result of ``OrderedDict.__reduce__`` for an instance with ``state``."""
    pairs = realize(tx, of.call_method(tx, "items", [], {})).get_iterator(tx)
    return TupleVariable([tx.wrap_static(of.python_type()), TupleVariable([]), state, NONE, pairs])


def mapping_entries(tx: Tracer, other: Variable) -> list[DictEntry]:
    """Return the (key, value) pairs of a mapping or of an iterable of pairs."""
    other = realize(tx, other)
    contents = other.dict_contents
    if contents is not None and (contents is other or getattr(other.python_type(), "__iter__", None) is dict.__iter__):
        # C code reads the entries directly; an overridden ``keys`` is not called.
        return list(contents.entries.values())
    if hasattr(other.python_type(), "keys") or has_instance_keys_attr(tx, other):
        keys = sequence_items(tx, realize(tx, other.get_attr(tx, "keys")).call(tx, [], {}))
        return [(k, realize(tx, other).get_item(tx, realize(tx, k))) for k in keys]
    return [_unpack_pair(tx, n, realize(tx, p)) for n, p in enumerate(sequence_items(tx, other))]


def iterate_pairs(tx: Tracer, other: Variable) -> Iterator[DictEntry]:
    """Iterate over (key, value) pairs in the way ``OrderedDict.update`` reads its argument."""
    contents = other.dict_contents
    if contents is not None and other.python_type() is dict:
        yield from list(contents.entries.values())
    elif hasattr(other.python_type(), "keys") or has_instance_keys_attr(tx, other):
        keys = iterator_of(tx, other.call_method(tx, "keys", [], {}))
        while (key := keys.next_item(tx)) is not None:
            yield key, other.get_item(tx, realize(tx, key))
    else:
        of_other = other.call_method(tx, "items", [], {}) if hasattr(other.python_type(), "items") else other
        pairs = iterator_of(tx, of_other)
        while (pair := pairs.next_item(tx)) is not None:
            yield _unpack_two(tx, pair)


def _unpack_two(tx: Tracer, pair: Variable) -> DictEntry:
    parts = iterator_of(tx, pair)
    items: list[Variable] = []
    while len(items) < 3 and (part := parts.next_item(tx)) is not None:
        items.append(part)
    if len(items) < 2:
        tx.raise_error(ValueError, f"need more than {len(items)} value{'s' * (len(items) != 1)} to unpack")
    if len(items) > 2:
        tx.raise_error(ValueError, "too many values to unpack (expected 2)")
    return items[0], items[1]


def has_instance_keys_attr(tx: Tracer, of: Any) -> bool:
    """Return True if an instance has its own ``keys`` attribute, which makes it a mapping."""
    return of.is_user_object and of.get_instance_attr(tx, "keys") is not None


def _unpack_pair(tx: Tracer, index: int, value: Variable) -> DictEntry:
    if value.lacks_methods("__iter__", "__getitem__"):
        text = f"cannot convert dictionary update sequence element #{index} to a sequence"
        tx.raise_error(TypeError, text, is_exact=False)
    parts = list(sequence_items(tx, value))
    if len(parts) != 2:
        text = f"dictionary update sequence element #{index} has length {len(parts)}; 2 is required"
        tx.raise_error(ValueError, text)
    return parts[0], parts[1]


def _build_key(tx: Tracer, key: Any, index: int, source: Source) -> Variable:
    return ConstantVariable(key) if is_literal(key) else tx.wrap(key, GetItemSource(DictKeysSource(source), index))


@register_builder(dict, collections.OrderedDict, collections.defaultdict)
def _dict(tx: Tracer, real: dict[Any, Any], source: Source) -> Variable:
    owner = tx.objects.variables_by_dict_id.get(id(real))
    if owner is not None and owner.source is not None:
        why = "it holds the attributes of an object"
        tx.guard(SameObject, source, AttrSource(owner.source, "__dict__"), True, why=why)
        return owner.get_attr(tx, "__dict__")
    if real is sys.modules:
        tx.guard_identity(real, source, "modules were looked up")
        namespace = GlobalsNamespace(sys.modules, "sys.modules")
        return tx.objects.variables_by_dict_id.setdefault(id(real), GlobalsDictVariable(namespace))
    if type(real) is dict:
        tx.guard_type(real, source, "it was used as a dict")
        return DictVariable({}, source, load_entries=lambda: _read_entries(tx, real, source))
    return build_dict(tx, real, source)


def build_dict(tx: Tracer, real: Any, source: Source) -> DictVariable:
    """Build the variable of a real dict, guarded by its keys."""
    entries = _read_entries(tx, real, source)
    is_default = isinstance(real, collections.defaultdict)
    factory = tx.wrap(real.default_factory, AttrSource(source, "default_factory")) if is_default else None
    return DictVariable(entries, source, type(real), factory)


def _read_entries(tx: Tracer, real: dict[Any, Any], source: Source) -> dict[Any, DictEntry]:
    """Make the entries of a real dict with lazy values; guard on its type and keys."""
    why = "its keys decided what was traced"
    tx.guard_type(real, source, why)
    pairs = _real_items(real)
    if pairs and all(torch.is_tensor(key) for key, _ in pairs):
        tx.guard(LengthMatch, source, len(pairs), why=why)  # guards on each key distinguish it from other tensors
    else:
        tx.guard(DictKeysMatch, source, tuple(key for key, _ in pairs), why=why)
    entries: dict[Any, DictEntry] = {}
    for n, (key, item) in enumerate(pairs):
        key_value = _build_key(tx, key, n, source)
        hash_key, has_user_hash = _hash_real_key(tx, entries, real, key, key_value)
        is_hashed = isinstance(real, dict) and (has_user_hash or key_value.fake is not None)
        reached = GetItemSource(DictValuesSource(source), n) if is_hashed else item_source(real, source, key)
        entries[hash_key] = (key_value, tx.make_lazy(item, reached))
    return entries


def _real_items(real: Any) -> list[tuple[Any, Any]]:
    """Return the items of a real dict in order, by the C method that no user code overrides."""
    base: Any = next((b for b in type(real).__mro__ if b in (collections.OrderedDict, dict)), type(real))
    # an OrderedDict whose keys were changed by dict methods raises
    with BreakGraph("dict-key", "a dict whose lookup does not find its own keys", KeyError):
        return list(base.items(real))


def _hash_real_key(tx: Tracer, entries: dict[Any, DictEntry], real: Any, key: Any, value: Variable) -> tuple[Any, bool]:
    """Hash a key of a real dict, which Python itself does not hash again.

    Return its hash key, and whether user code hashes it.

    Side effects or exceptions in ``__hash__`` or ``__eq__``, and a changed hash, raise Unsupported.
    """
    with (
        BreakGraph("dict-key", "a dict with a key whose __hash__ or __eq__ raises", UserException),
        forbid_side_effects(tx, f"{value.python_type().__name__}.__hash__ or __eq__"),
    ):
        hash_key = mark_stored(value.hash_key(tx))
        is_known = hash_key in entries
    has_user_hash = isinstance(hash_key, UserHashKey)
    if is_known or (has_user_hash and not _contains_key(real, key)):
        raise Unsupported("dict-key", "a dict with a key whose hash has changed")
    return hash_key, has_user_hash


def _contains_key(real: Any, key: Any) -> bool:
    try:
        return key in real
    except Exception:  # raised by __hash__ or __eq__ of the key
        return False


_VIEW_TYPES: dict[type, tuple[type, str]] = {
    type(getattr(cls(), kind)()): (cls, kind)
    for cls in (dict, collections.OrderedDict)
    for kind in ("keys", "values", "items")
}


@register_builder(*_VIEW_TYPES, why="the dict view was read")
def _view(tx: Tracer, real: Any, source: Source) -> Variable:
    tx.objects.viewed_dict_ids.update(map(id, gc.get_referents(real)))
    cls, kind = _VIEW_TYPES[type(real)]
    of = build_dict(tx, real.mapping, AttrSource(source, "mapping"))
    if cls is collections.OrderedDict:
        of.cls = cls
    return DictViewVariable(of, kind, source)


@register_sourceless_builder(dict, collections.OrderedDict)
def _make_dict(tx: Tracer, value: dict[Any, Any]) -> Variable:
    entries: dict[Any, DictEntry] = {}
    for real_key, real_value in value.items():
        key = tx.from_python(real_key)
        entries[key.hash_key(tx)] = (key, tx.from_python(real_value))
    return DictVariable(entries, None, type(value))


@register_sourceless_builder(collections.defaultdict)
def _make_default_dict(tx: Tracer, value: collections.defaultdict[Any, Any]) -> Variable:
    contents: Any = _make_dict(tx, value)
    return DictVariable(contents.entries, None, type(value), tx.from_python(value.default_factory))
