"""Variables for dict, OrderedDict, defaultdict and their views."""

from __future__ import annotations

import collections
import gc
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from engine.ir.guards.aliasing import SameObject
from engine.ir.guards.python_values import DictKeysMatch
from engine.ir.sources.attributes import AttrSource
from engine.ir.sources.base import Source
from engine.ir.sources.containers import DictKeyAtSource, DictValueAtSource, item_source
from engine.trace.variables.base import NONE, ConstantVariable, Variable, realize, type_name
from engine.trace.variables.builder import is_literal, register_builder, register_sourceless_builder
from engine.trace.variables.containers.sequences import TupleVariable, sequence_items
from engine.trace.variables.containers.sets import SetVariable
from engine.trace.variables.exceptions.type_errors import is_iterable
from engine.trace.variables.stdlib.string_format import entry_proxies, format_proxy

if TYPE_CHECKING:
    from engine.trace.codegen import PyCodegen
    from engine.trace.tracer import Tracer

DictEntry = tuple[Variable, Variable]


class DictVariable(Variable):
    """A dict: ``entries`` maps hash keys to (key, value), in order; ``cls`` may be a subclass.

    The contents of an external dict load lazily: ``load_entries`` returns its entries on first use. Until then
    ``pending_stores`` holds only the items set during tracing.
    """

    __slots__ = (
        "attributes",
        "cls",
        "default_factory",
        "insertion_log",
        "load_entries",
        "loaded_entries",
        "mutation_count",
        "order_invalid",
        "pending_stores",
        "source",
        "was_reordered",
    )
    is_mutable = True

    def __init__(
        self,
        entries: dict[Any, DictEntry],
        source: Source | None = None,
        cls: type = dict,
        factory: Variable | None = None,
        read: Callable[[], dict[Any, DictEntry]] | None = None,
    ) -> None:
        self.loaded_entries = entries
        self.load_entries = read
        self.pending_stores: dict[Any, DictEntry] = {}
        self.source = source
        self.cls = cls
        self.default_factory = factory
        self.attributes: dict[str, Variable] = {}
        """Attributes that traced code set on an OrderedDict."""
        self.was_reordered = False
        """True if ``move_to_end`` moved a key of an OrderedDict: the order of its dict differs."""
        self.order_invalid = False
        """True if a ``dict`` method changed the keys of an OrderedDict.

        It bypasses the order that the OrderedDict maintains, so that order is out of date.
        """
        self.mutation_count = 0
        """Number of key insertions, deletions and moves so far."""
        self.insertion_log: list[tuple[Any, int]] = []
        """Inserted or moved keys, each with the mutation count at that time.

        An active iterator visits these keys after all others, in this order.
        """

    @property
    def entries(self) -> dict[Any, DictEntry]:
        """The current entries; the first read loads an external dict and guards on its keys."""
        if self.load_entries is not None:
            read, self.load_entries = self.load_entries, None
            self.loaded_entries = read()
            for stands_for, (key, value) in self.pending_stores.items():
                self._set_entry(stands_for, key, value)
        return self.loaded_entries

    @entries.setter
    def entries(self, entries: dict[Any, DictEntry]) -> None:
        self.loaded_entries, self.load_entries = entries, None

    def pending_store(self, key: Variable) -> DictEntry | None:
        """Return the entry that was set for ``key`` while the dict is not loaded yet."""
        is_plain = self.load_entries is not None and isinstance(key, ConstantVariable) and type(key.value) in (str, int)
        return self.pending_stores.get(key.value) if is_plain else None  # type: ignore[attr-defined]

    @classmethod
    def from_str_keys(cls, values: Mapping[str, Variable]) -> DictVariable:
        """Build a new plain dict from values by string key."""
        return cls({name: (ConstantVariable(name), value) for name, value in values.items()})

    def format_contents(self, tx: Tracer, known: dict[int, Any]) -> Any:
        if self.cls not in (dict, collections.OrderedDict, collections.defaultdict):
            return None
        made: Any = self.cls()
        if self.cls is collections.defaultdict:
            made.default_factory = None if self.default_factory is None else format_proxy(tx, self.default_factory)
        known[id(self)] = made
        made.update(entry_proxies(tx, self.entries.values()))
        return made

    def python_type(self) -> type:
        return self.cls

    def describe(self) -> str:
        return "dict (not read yet)" if self.load_entries else f"{self.cls.__name__} of {len(self.entries)}"

    def as_python_constant(self, tx: Tracer) -> Any:
        made = {
            realize(tx, k).as_python_constant(tx): realize(tx, v).as_python_constant(tx)
            for k, v in self.entries.values()
        }
        if issubclass(self.cls, collections.OrderedDict):
            return collections.OrderedDict(made)
        if self.cls is collections.defaultdict:
            return collections.defaultdict(
                None if self.default_factory is None else self.default_factory.as_python_constant(tx), made
            )
        return made

    def child_variables(self) -> list[Variable]:
        entries = self.entries if self.load_entries is None else self.pending_stores
        return [*(part for entry in entries.values() for part in entry), *self.attributes.values()]

    def hash_key(self, tx: Tracer) -> Any:
        return tx.raise_type_error(f"unhashable type: '{type_name(self.cls)}'")

    def as_node_arg(self, tx: Tracer) -> tuple[Any, Any]:
        pairs = {
            realize(tx, k).as_python_constant(tx): realize(tx, v).as_node_arg(tx) for k, v in self.entries.values()
        }
        return {k: p[0] for k, p in pairs.items()}, {k: p[1] for k, p in pairs.items()}

    def is_truthy(self, tx: Tracer) -> bool:
        return bool(self.entries)

    def length(self, tx: Tracer) -> Variable:
        return ConstantVariable(len(self.entries))

    def keys(self) -> list[Variable]:
        """Return the keys in order."""
        self._check_order()
        return [k for k, _ in self.entries.values()]

    def values(self) -> list[Variable]:
        """Return the values in order."""
        self._check_order()
        return [v for _, v in self.entries.values()]

    def _check_order(self) -> None:
        if self.order_invalid:
            raise self.unsupported("reading the order after a call of a plain dict method", "builtin-subclass")

    def get_iterator(self, tx: Tracer) -> Variable:
        return DictViewVariable(self, "keys").get_iterator(tx)

    def contains(self, tx: Tracer, item: Variable) -> bool:
        return self.pending_store(item) is not None or item.hash_key(tx) in self.entries

    def get_item(self, tx: Tracer, key: Variable) -> Variable:
        found = self.pending_store(key) or self.entries.get(key.hash_key(tx))
        if found is not None:
            return found[1]
        return self.call_default_factory(tx, key, self)

    def call_default_factory(self, tx: Tracer, key: Variable, into: Variable) -> Variable:
        """Call the default factory for ``key`` and store the result in ``into``.

        Implements ``defaultdict.__missing__``. Raises KeyError if there is no factory.
        """
        if self.default_factory is None or (
            isinstance(self.default_factory, ConstantVariable) and self.default_factory.value is None
        ):
            return tx.raise_key_error(key)  # type: ignore[no-any-return]
        made = realize(tx, self.default_factory).call(tx, [], {})
        into.set_item(tx, key, made)
        return made

    def set_item(self, tx: Tracer, key: Variable, value: Variable) -> None:
        self.set_hashed_item(tx, key.hash_key(tx), key, value)

    def set_hashed_item(self, tx: Tracer, stands_for: Any, key: Variable, value: Variable) -> None:
        """Set the value of a key that is already hashed."""
        tx.side_effects.record_mutation(self)
        if self.load_entries is not None and type(stands_for) in (str, int):
            self.pending_stores[stands_for] = (key, value)
        else:
            self._set_entry(stands_for, key, value)

    def _set_entry(self, stands_for: Any, key: Variable, value: Variable) -> None:
        from engine.trace.variables.objects.id_and_hash import mark_stored

        old = self.entries.get(stands_for)
        self.entries[stands_for] = (key if old is None else old[0], value)
        if old is None:
            self._log_insertion(stands_for)
        mark_stored(stands_for)

    def _log_insertion(self, stands_for: Any) -> None:
        self.mutation_count += 1
        self.insertion_log.append((stands_for, self.mutation_count))

    def del_item(self, tx: Tracer, key: Variable) -> None:
        self.pop(tx, key)

    def pop(self, tx: Tracer, key: Variable, default: Variable | None = None) -> Variable:
        """Remove a key and return its value or the default; raise KeyError without either."""
        stands_for = key.hash_key(tx)
        if stands_for not in self.entries:
            if default is not None:
                return default
            tx.raise_key_error(key)
        tx.side_effects.record_mutation(self)
        self.mutation_count += 1
        return self.entries.pop(stands_for)[1]

    def update(self, tx: Tracer, other: Variable) -> None:
        """Add the entries of a mapping or of an iterable of pairs."""
        from engine.trace.variables.containers.dict_subclasses import ordered_dict_update

        tx.side_effects.record_mutation(self)
        given: Any = realize(tx, other)
        if type(given) is DictVariable and given.cls is dict and type(self).set_item is DictVariable.set_item:
            for stands_for, (key, value) in list(
                given.entries.items()
            ):  # copying from a dict does not hash the keys again
                self.set_hashed_item(tx, stands_for, key, value)
            return
        if self.cls is collections.OrderedDict:
            ordered_dict_update(tx, self, "update", [other], {})
            return
        for key, value in mapping_entries(tx, other):
            self.set_item(tx, realize(tx, key), value)

    def get_attr(self, tx: Tracer, name: str) -> Variable:
        from engine.trace.variables.callables.methods import BuiltinMethodVariable

        if name == "__class__":
            return tx.wrap_static(self.cls)
        if name == "default_factory" and self.cls is collections.defaultdict:
            return self.default_factory or NONE
        if name in self.attributes:
            return self.attributes[name]
        if name == "__dict__" and self.is_ordered:
            return self._get_dict(tx)
        if self.lacks_methods(name):
            tx.raise_error(AttributeError, f"'{type_name(self.cls)}' object has no attribute '{name}'")
        return BuiltinMethodVariable(self, name)

    def _get_dict(self, tx: Tracer) -> Variable:
        from engine.trace.variables.objects.instance_dicts import InstanceDictVariable

        if self.source is not None:
            raise self.unsupported_attribute("reading", "__dict__")
        made: Variable = InstanceDictVariable(tx, self)
        return made

    def current_attributes(self, tx: Tracer) -> dict[Any, DictEntry]:
        """Return the ``__dict__`` of an OrderedDict, as dict entries."""
        return {name: (ConstantVariable(name), value) for name, value in self.attributes.items()}

    def write_attr(self, tx: Tracer, name: str, value: Variable | None) -> None:
        """Set an instance attribute of an OrderedDict; a value of None deletes it."""
        tx.side_effects.record_mutation(self)
        self.attributes.pop(name, None)
        if value is not None:
            self.attributes[name] = value

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

    def call_method(self, tx: Tracer, name: str, args: list[Variable], kwargs: dict[str, Variable]) -> Variable:
        from engine.trace.operators.arithmetic import call_special_by_name

        args = [realize(tx, a) for a in args]
        match name, len(args):
            case (("keys" | "values" | "items"), 0):
                return DictViewVariable(self, name)
            case "get", (1 | 2):
                found = self.entries.get(args[0].hash_key(tx))
                return found[1] if found is not None else args[1] if len(args) == 2 else NONE
            case "pop", (1 | 2):
                return self.pop(tx, args[0], args[1] if len(args) == 2 else kwargs.get("default"))
            case "popitem", 0:
                return self._popitem(tx, kwargs.get("last"))
            case "popitem", 1 if self.is_ordered:
                return self._popitem(tx, args[0])
            case "setdefault", (1 | 2):
                stands_for = args[0].hash_key(tx)
                if stands_for not in self.entries:
                    self.set_hashed_item(
                        tx, stands_for, args[0], args[1] if len(args) == 2 else kwargs.get("default", NONE)
                    )
                return self.entries[stands_for][1]
            case "__missing__", 1 if self.cls is collections.defaultdict:
                return self.call_default_factory(tx, args[0], self)
            case "__init__", (1 | 2) if issubclass(self.cls, collections.defaultdict):
                tx.side_effects.record_mutation(self)
                self.default_factory = args[0]
                return self.call_method(tx, "update", args[1:], kwargs)
            case (("update" | "__init__"), (0 | 1)):
                for other in args:
                    self.update(tx, other)
                for word, value in kwargs.items():
                    self.set_item(tx, ConstantVariable(word), value)
                return NONE
            case "__init__", count if self.cls is not collections.defaultdict:
                tx.fold_constant(dict.__init__, {}, *[()] * count)
            case "clear", 0:
                tx.side_effects.record_mutation(self)
                self.mutation_count += 1
                self.entries.clear()
                return NONE
            case "__or__" | "__ror__", 1:
                return self._or_method(tx, args[0], reflected=name == "__ror__")
            case "copy" | "__copy__", 0:
                return DictVariable(dict(self.entries), None, self.cls, self.default_factory)
            case "fromkeys", _:
                return realize(tx, tx.wrap_static(self.cls.fromkeys)).call(tx, args, kwargs)  # type: ignore[attr-defined]
            case "__contains__", 1:
                return ConstantVariable(self.contains(tx, args[0]))
            case "__getitem__", 1:
                return self.get_item(tx, args[0])
            case "__setitem__", 2:
                self.set_item(tx, args[0], args[1])
                return NONE
            case "__len__", 0:
                return self.length(tx)
            case "__iter__", 0:
                return self.get_iterator(tx)
            case "__reversed__", 0:
                return realize(tx, tx.wrap_static(reversed).call(tx, [self], {}))
            case "move_to_end", _ if self.is_ordered:
                return self._move_to_end(tx, args, kwargs)
            case "__reduce__", 0 if self.cls is collections.OrderedDict:
                return ordered_dict_reduce(tx, self, self._get_dict(tx) if self.attributes else NONE)
        return call_special_by_name(tx, self, name, args, kwargs)

    def _or_method(self, tx: Tracer, other: Variable, *, reflected: bool) -> Variable:
        """Implement an explicit call of ``__or__`` or ``__ror__``."""
        from engine.trace.operators.arithmetic import binary_op

        if not issubclass(other.python_type(), dict):
            return ConstantVariable(NotImplemented)
        return binary_op(tx, "|", other, self) if reflected else binary_op(tx, "|", self, other)

    @property
    def is_ordered(self) -> bool:
        """True for OrderedDict and its subclasses, which use the methods of ``OrderedDict``."""
        return issubclass(self.cls, collections.OrderedDict)

    def _popitem(self, tx: Tracer, last: Variable | None) -> Variable:
        if not self.entries:
            tx.raise_error(KeyError, "dictionary is empty" if self.is_ordered else "popitem(): dictionary is empty")
        self._check_order()
        at_end = last is None or realize(tx, last).is_truthy(tx)
        stands_for = next(reversed(self.entries)) if at_end else next(iter(self.entries))
        tx.side_effects.record_mutation(self)
        self.mutation_count += 1
        return TupleVariable(list(self.entries.pop(stands_for)))

    def _move_to_end(self, tx: Tracer, args: list[Variable], kwargs: dict[str, Variable]) -> Variable:
        given = dict(zip(("key", "last"), args, strict=False)) | kwargs
        if "key" not in given or len(args) + len(kwargs) != len(given) or not given.keys() <= {"key", "last"}:
            tx.fold_constant(
                collections.OrderedDict({None: 1}).move_to_end, *[None] * len(args), **dict.fromkeys(kwargs)
            )
        key = realize(tx, given["key"])
        at_end = realize(tx, given.get("last", ConstantVariable(True))).is_truthy(tx)
        stands_for = key.hash_key(tx)
        if stands_for not in self.entries:
            tx.raise_key_error(key)
        if stands_for == (next(reversed(self.entries)) if at_end else next(iter(self.entries))):
            return NONE
        self._check_order()
        self.was_reordered = True
        tx.side_effects.record_mutation(self)
        self._log_insertion(stands_for)
        entry = self.entries.pop(stands_for)
        rest = dict(self.entries)
        self.entries = {**rest, stands_for: entry} if at_end else {stands_for: entry, **rest}
        return NONE

    def reconstruct(self, cg: PyCodegen) -> None:
        self._check_order()
        if self.cls is collections.defaultdict:
            cg.body.callable(lambda: cg.load_const(self.cls))
            cg.load(self.default_factory or NONE)
            self._emit_build_map(cg)
            cg.body.call(2)
            return
        if self.cls is not dict:
            cg.body.callable(lambda: cg.load_const(self.cls))
            self._emit_build_map(cg)
            cg.body.call(1)
            self._emit_attributes(cg)
            return
        if cg.is_cyclic(self):
            cg.body.emit("BUILD_MAP", 0)
            cg.cache_top(self)
            cg.defer_fill(self)
            return
        self._emit_build_map(cg)

    def _emit_attributes(self, cg: PyCodegen) -> None:
        """Emit code that sets the attributes on the dict on top of the stack."""
        for name, value in self.attributes.items():
            cg.body.emit("COPY", 1)
            cg.load(value)
            cg.body.emit("SWAP", 2)
            cg.body.emit("STORE_ATTR", name)

    def _emit_build_map(self, cg: PyCodegen) -> None:
        from engine.trace.variables.objects.id_and_hash import check_keys_rebuildable

        check_keys_rebuildable(self.entries, self.cls.__name__)
        for key, value in self.entries.values():
            cg.load(key)
            cg.load(value)
        cg.body.emit("BUILD_MAP", len(self.entries))

    def fill(self, cg: PyCodegen) -> None:
        """Emit code that pops the existing dict on the stack and replaces its contents.

        If the dict was never loaded, the code only adds the new items.
        """
        from engine.trace.codegen_runtime.containers import add_entries, refill_dict, refill_ordered
        from engine.trace.variables.objects.id_and_hash import check_keys_rebuildable

        if self.load_entries is not None:
            cg.load_helper(add_entries, 1)
            self._emit_update_call(
                cg,
                [key for key, _ in self.pending_stores.values()],
                [value for _, value in self.pending_stores.values()],
            )
            return
        check_keys_rebuildable(self.entries, self.cls.__name__)
        cg.load_helper(refill_ordered if issubclass(self.cls, collections.OrderedDict) else refill_dict, 1)
        self._emit_update_call(cg, self.keys(), self.values())

    def _emit_update_call(self, cg: PyCodegen, keys: list[Variable], values: list[Variable]) -> None:
        for part in (keys, values):
            cg.load_all(part)
            cg.body.emit("BUILD_LIST", len(part))
        cg.body.call(3)
        cg.body.emit("POP_TOP")


def ordered_dict_reduce(tx: Tracer, of: Variable, state: Variable) -> Variable:
    """Return the result of ``OrderedDict.__reduce__`` for an instance with ``state``."""
    pairs = realize(tx, of.call_method(tx, "items", [], {})).get_iterator(tx)
    return TupleVariable([tx.wrap_static(of.python_type()), TupleVariable([]), state, NONE, pairs])


def mapping_entries(tx: Tracer, other: Variable) -> list[DictEntry]:
    """Return the (key, value) pairs of a mapping or of an iterable of pairs."""
    other = realize(tx, other)
    if isinstance(other, DictVariable):
        return list(other.entries.values())
    if isinstance(other, DictViewVariable) and other.view_kind != "items":
        raise other.unsupported("reading pairs")
    own = getattr(other, "inner", None)
    if isinstance(own, DictVariable) and getattr(other.python_type(), "__iter__", None) is dict.__iter__:
        return list(own.entries.values())  # C code reads the entries directly; an overridden ``keys`` is not called
    if hasattr(other.python_type(), "keys") or has_instance_keys_attr(tx, other):
        keys = sequence_items(tx, realize(tx, other.get_attr(tx, "keys")).call(tx, [], {}))
        return [(k, realize(tx, other).get_item(tx, realize(tx, k))) for k in keys]
    return [_unpack_pair(tx, n, realize(tx, p)) for n, p in enumerate(sequence_items(tx, other))]


def has_instance_keys_attr(tx: Tracer, of: Variable) -> bool:
    """Return True if an instance has its own ``keys`` attribute, which makes it a mapping."""
    from engine.trace.variables.objects.user_defined_objects import UserDefinedObjectVariable

    return isinstance(of, UserDefinedObjectVariable) and of.get_instance_attr(tx, "keys") is not None


def _unpack_pair(tx: Tracer, index: int, value: Variable) -> DictEntry:
    if not is_iterable(value):
        tx.raise_type_error(f"cannot convert dictionary update sequence element #{index} to a sequence")
    parts = list(sequence_items(tx, value))
    if len(parts) != 2:
        text = f"dictionary update sequence element #{index} has length {len(parts)}; 2 is required"
        tx.raise_error(ValueError, text)
    return parts[0], parts[1]


class DictViewVariable(Variable):
    """A view from ``d.keys()``, ``d.values()`` or ``d.items()``, always up to date."""

    def __init__(self, of: DictVariable, kind: str, source: Source | None = None) -> None:
        self.dict_variable = of
        self.view_kind = kind
        self.source = source

    def format_contents(self, tx: Tracer, known: dict[int, Any]) -> Any:
        like: Any = collections.OrderedDict() if issubclass(self.dict_variable.cls, collections.OrderedDict) else {}
        known[id(self)] = view = getattr(like, self.view_kind)()
        like.update(entry_proxies(tx, self.dict_variable.entries.values()))
        return view

    def python_type(self) -> type:
        of: Any = collections.OrderedDict() if self.dict_variable.is_ordered else {}
        return type(getattr(of, self.view_kind)())

    def items(self) -> list[Variable]:
        """Return the items that iteration yields now."""
        self.dict_variable.keys()
        match self.view_kind:
            case "keys":
                return self.dict_variable.keys()
            case "values":
                return self.dict_variable.values()
            case _:
                return [TupleVariable([k, v]) for k, v in self.dict_variable.entries.values()]

    def as_python_constant(self, tx: Tracer) -> Any:
        return getattr(self.dict_variable.as_python_constant(tx), self.view_kind)()

    def length(self, tx: Tracer) -> Variable:
        return self.dict_variable.length(tx)

    def is_truthy(self, tx: Tracer) -> bool:
        return self.dict_variable.is_truthy(tx)

    def get_iterator(self, tx: Tracer) -> Variable:
        from engine.trace.variables.containers.iterators import DictOrSetIteratorVariable

        self.dict_variable.keys()
        kind = collections.OrderedDict if issubclass(self.dict_variable.cls, collections.OrderedDict) else dict
        what = "OrderedDict" if kind is collections.OrderedDict else "dictionary"
        cls = type(iter(getattr(kind(), self.view_kind)()))
        return DictOrSetIteratorVariable(
            list(self.dict_variable.entries),
            cls,
            self._read_entry,
            lambda: list(self.dict_variable.entries),
            what,
            self,
            self.dict_variable,
        )

    def _read_entry(self, key: Any) -> Variable | None:
        entry = self.dict_variable.entries.get(key)
        if entry is None:
            return None
        return TupleVariable(list(entry)) if self.view_kind == "items" else entry[self.view_kind == "values"]

    def contains(self, tx: Tracer, item: Variable) -> bool:
        from engine.trace.operators.arithmetic import identical_or_equal

        if self.view_kind == "keys":
            return self.dict_variable.contains(tx, item)
        return any(identical_or_equal(tx, realize(tx, i), item) for i in self.items())

    def get_attr(self, tx: Tracer, name: str) -> Variable:
        from engine.trace.variables.callables.methods import BuiltinMethodVariable

        return BuiltinMethodVariable(self, name)

    def call_method(self, tx: Tracer, name: str, args: list[Variable], kwargs: dict[str, Variable]) -> Variable:
        if name == "__iter__":
            return self.get_iterator(tx)
        if name == "__reversed__" and not args:
            return realize(tx, tx.wrap_static(reversed).call(tx, [self], {}))
        if name == "isdisjoint" and self.view_kind == "keys":
            return SetVariable.from_items(tx, self.items()).call_method(tx, name, args, kwargs)
        from engine.trace.operators.arithmetic import call_special_by_name

        return call_special_by_name(tx, self, name, args, kwargs)

    def child_variables(self) -> list[Variable]:
        return [self.dict_variable]

    def reconstruct(self, cg: PyCodegen) -> None:
        def load() -> None:
            cg.load(self.dict_variable)
            cg.body.attribute(self.view_kind)

        cg.body.callable(load)
        cg.body.call(0)


def _build_key(tx: Tracer, real: Any, key: Any, index: int, origin: Source) -> Variable:
    return ConstantVariable(key) if is_literal(key) else tx.wrap(key, DictKeyAtSource(origin, index))


@register_builder(dict, collections.OrderedDict, collections.defaultdict)
def _dict(tx: Tracer, real: dict[Any, Any], origin: Source) -> Variable:
    owner = tx.objects.variables_by_dict_id.get(id(real))
    if owner is not None and owner.source is not None:
        why = "it holds the attributes of an object"
        tx.add_guard(SameObject(origin, AttrSource(owner.source, "__dict__"), True, cause=tx.guard_cause(why)))
        return owner.get_attr(tx, "__dict__")
    if type(real) is dict:
        tx.guard_type(real, origin, "it was used as a dict")
        return DictVariable({}, origin, read=lambda: _read_entries(tx, real, origin))
    return build_dict(tx, real, origin)


def build_dict(tx: Tracer, real: dict[Any, Any], origin: Source) -> DictVariable:
    """Build the variable of a real dict, guarded by its keys."""
    entries = _read_entries(tx, real, origin)
    factory = None
    if isinstance(real, collections.defaultdict):
        factory = tx.wrap(real.default_factory, AttrSource(origin, "default_factory"))
    return DictVariable(entries, origin, type(real), factory)


def _read_entries(tx: Tracer, real: dict[Any, Any], origin: Source) -> dict[Any, DictEntry]:
    """Make the entries of a real dict with lazy values; guard on its type and keys."""
    from engine.trace.variables.objects.id_and_hash import UserHashKey
    from engine.trace.variables.tensors.tensor import TensorVariable

    why = "its keys decided what was traced"
    tx.guard_type(real, origin, why)
    pairs = _real_items(real)
    tx.add_guard(DictKeysMatch(origin, tuple(key for key, _ in pairs), cause=tx.guard_cause(why)))
    entries: dict[Any, DictEntry] = {}
    for n, (key, item) in enumerate(pairs):
        key_value = _build_key(tx, real, key, n, origin)
        stands_for = _hash_real_key(tx, entries, real, key, key_value)
        is_hashed = isinstance(stands_for, (UserHashKey, TensorVariable)) and isinstance(real, dict)
        reached = DictValueAtSource(origin, n) if is_hashed else item_source(real, origin, key)
        entries[stands_for] = (key_value, tx.make_lazy(item, reached))
    return entries


def _real_items(real: Any) -> list[tuple[Any, Any]]:
    """Return the items of a real dict in order, by the C method that no user code overrides."""
    from engine.trace.exc import Unsupported

    base: Any = next(b for b in (collections.OrderedDict, dict, type(real)) if isinstance(real, b))
    try:
        return list(base.items(real))
    except KeyError:  # an OrderedDict whose keys were changed by dict methods
        raise Unsupported("dict-key", "a dict whose lookup does not find its own keys") from None


def _hash_real_key(tx: Tracer, entries: dict[Any, DictEntry], real: Any, key: Any, value: Variable) -> Any:
    """Hash a key of a real dict, which Python itself does not hash again.

    Side effects or exceptions in ``__hash__`` or ``__eq__``, and a changed hash, raise Unsupported.
    """
    from engine.trace.exc import Unsupported, UserException
    from engine.trace.variables.objects.id_and_hash import UserHashKey, forbid_side_effects, mark_stored

    try:
        with forbid_side_effects(tx, f"{value.python_type().__name__}.__hash__ or __eq__"):
            stands_for = mark_stored(value.hash_key(tx))
            is_known = stands_for in entries
    except UserException as error:
        raise Unsupported("dict-key", "a dict with a key whose __hash__ or __eq__ raises") from error
    if is_known or (isinstance(stands_for, UserHashKey) and not _contains_key(real, key)):
        raise Unsupported("dict-key", "a dict with a key whose hash has changed")
    return stands_for


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


@register_builder(*_VIEW_TYPES)
def _view(tx: Tracer, real: Any, origin: Source) -> Variable:
    tx.guard_type(real, origin, "the dict view was read")
    tx.objects.viewed_dict_ids.update(map(id, gc.get_referents(real)))
    cls, kind = _VIEW_TYPES[type(real)]
    of = build_dict(tx, real.mapping, AttrSource(origin, "mapping"))
    if cls is collections.OrderedDict:
        of.cls = cls
    return DictViewVariable(of, kind, origin)


@register_sourceless_builder(dict, collections.OrderedDict, collections.defaultdict)
def _make_dict(tx: Tracer, value: dict[Any, Any]) -> Variable:
    entries: dict[Any, DictEntry] = {}
    for k, v in value.items():
        key = tx.from_python(k)
        entries[key.hash_key(tx)] = (key, tx.from_python(v))
    factory = tx.from_python(value.default_factory) if isinstance(value, collections.defaultdict) else None
    return DictVariable(entries, None, type(value), factory)
