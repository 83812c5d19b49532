"""Collect the objects that many guards depend on, to check them together.

These are dict versions, classes, attributes of functions, empty tables and tensors.
"""

from __future__ import annotations

import abc
import collections
import enum
import gc
import types
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from engine.guards.torch_c_helpers import track_attribute_writes
from engine.ir.guards.aliasing import SameObject
from engine.ir.guards.base import Guard
from engine.ir.guards.python_values import (
    CodeMatch,
    DictKeysMatch,
    EqualsMatch,
    HasAttrGuard,
    IdMatch,
    LengthMatch,
    TypeMatch,
)
from engine.ir.guards.tensors import TensorSubclassMatch
from engine.ir.introspection import python_objects
from engine.ir.sources.attributes import (
    AttrSource,
    CellContentsSource,
    InstanceDictGetSource,
    ModuleHooksSource,
    ModuleMemberSource,
)
from engine.ir.sources.base import MISSING, Source
from engine.ir.sources.containers import GetItemSource
from engine.ir.sources.roots import ConstantSource, GlobalSource, OptionalGlobalSource

MAX_CLASS_CHANGES = 3
"""Observed writes to a class after which its guards are checked one by one."""

MAX_REPLACED_OBJECTS = 2
"""Observed replacements of an object after which its guards are checked one by one."""

_FIXED_CLASS_TYPES = (
    type(None), bool, int, float, complex, str, bytes, torch.dtype, torch.device, torch.layout, torch.memory_format, torch.Size,
    types.FunctionType, types.BuiltinFunctionType, types.MethodType, tuple, list, dict, set, frozenset, range, slice,
)  # fmt: skip
"""Types whose instances cannot change their ``__class__``."""


def read_own_dict(value: Any) -> Any:
    """Return ``value.__dict__`` without a ``__getattribute__`` of the user."""
    return object.__getattribute__(value, "__dict__")


class NotCovered(Exception):
    """The value is not read through dicts alone."""


class ReplacedTensor(NotCovered):
    """The value is a tensor in a list, or in a dict that is written between calls."""

    def __init__(self, space: Any, key: Any) -> None:
        super().__init__()
        self.space = space
        self.key = key


class InnerTensor(NotCovered):
    """The value is in a slot of a tensor subclass: checks read it again."""

    def __init__(self, outer: Any, name: str) -> None:
        super().__init__()
        self.outer = outer
        self.name = name


@dataclass
class SubtreeDependencies:
    """Dependencies of the guards below one module, collected while the guards hold."""

    versioned_dicts: dict[int, Any] = field(default_factory=dict)
    """Dicts whose version is compared, by id."""
    class_dicts: dict[int, Any] = field(default_factory=dict)
    """Class dicts whose version is compared, by id."""
    compared_entries: dict[int, tuple[Any, dict[Any, Any]]] = field(default_factory=dict)
    """Dicts that are written between calls, with the entries to compare (``MISSING``: absent)."""
    objects: dict[int, Any] = field(default_factory=dict)
    """Objects whose class is compared, by id."""
    weak_objects: dict[int, Any] = field(default_factory=dict)
    """Objects whose class is compared and that users may want freed; held weakly."""
    globals_ids: set[int] = field(default_factory=set)
    """Ids of dicts that are globals."""
    attributes: dict[tuple[int, str], tuple[Any, str, Any]] = field(default_factory=dict)
    """(object, attribute, value) for C attributes of functions, cells and classes."""
    entry_ids: dict[tuple[int, Any], int] = field(default_factory=dict)
    """Id of each dict entry that was read, by the dict's id and the key."""
    empty_containers: list[Any] = field(default_factory=list)
    lists: dict[int, Any] = field(default_factory=dict)
    """Lists whose length is compared, by id."""
    list_items: dict[tuple[int, int], tuple[Any, int, Any]] = field(default_factory=dict)
    """(list, index, item) of list items that are compared."""
    tensors: dict[Source, Any] = field(default_factory=dict)
    replaced_tensors: dict[Source, tuple[Any, Any]] = field(default_factory=dict)
    """(dict or list, key) of replaced tensors: only their metadata is compared."""
    inner_tensors: dict[Source, tuple[Any, str]] = field(default_factory=dict)
    """(tensor subclass, slot) of inner tensors: only their metadata is compared."""
    borrowed_dicts: list[tuple[Any, tuple[str, ...]]] = field(default_factory=list)
    """(module, tables in its dict) of weakly held modules: versions of these dicts count."""

    def borrow_dicts(self, root: Any) -> None:
        """Read modules' dicts through the modules, and hold these weakly.

        Objects in them may refer to the root, as hooks of FSDP2 do.
        """
        for owner in [o for o in (root, *self.objects.values()) if isinstance(o, torch.nn.Module)]:
            own = python_objects.instance_dict(owner)
            if id(own) not in self.versioned_dicts or read_own_dict(owner) is not own:
                continue
            names = tuple(n for n, table in own.items() if type(table) is dict and id(table) in self.versioned_dicts)
            for space in (own, *map(own.get, names)):
                self.versioned_dicts.pop(id(space), None)
            self.borrowed_dicts.append((owner, names))
            if owner is not root:
                self.weak_objects[id(owner)] = self.objects.pop(id(owner))

    def held_containers(self) -> list[Any]:
        """Return the dicts and lists of instances, modules and tables that a check refers to."""
        compared = (space for space, _ in self.compared_entries.values())
        replaced = (space for space, _ in self.replaced_tensors.values())
        listed = (container for container, _, _ in self.list_items.values())
        return [*self.versioned_dicts.values(), *compared, *replaced, *self.lists.values(), *listed]


@dataclass
class ObservedWrites:
    """Dicts that were written and entries that were replaced between recordings."""

    dicts: Counter[int] = field(default_factory=Counter)
    """Number of recordings before which a dict was written, by id."""
    entries: Counter[tuple[int, Any]] = field(default_factory=Counter)
    """Number of recordings before which an entry was replaced, by the dict's id and the key."""

    def add(self, dicts: Sequence[Any], entry_ids: Mapping[tuple[int, Any], int]) -> None:
        """Note that these dicts were written since their entries had these ids."""
        written = {id(d): d for d in dicts}
        self.dicts.update(written.keys())
        for (space, key), value_id in entry_ids.items():
            if space in written and id(written[space].get(key, MISSING)) != value_id:
                self.entries[space, key] += 1


def collect_dependencies(
    root: Source | None, value: Any, guards: Sequence[Guard], written: ObservedWrites
) -> tuple[SubtreeDependencies, list[Guard]]:
    """Return the dependencies of the guards, and the guards that they do not cover."""
    walk = _DependencyCollector(root, value, written)
    rest: list[Guard] = []
    for guard in guards:
        try:
            walk.add_guard(guard)
        except (NotCovered, LookupError, AttributeError, TypeError):
            rest.append(guard)
    spoilt = {g.source for g in rest if type(g) is not TensorSubclassMatch} & walk.plan.tensors.keys()
    for origin in spoilt:
        del walk.plan.tensors[origin]
        rest += [g for g in guards if g.source == origin and g not in rest]
    return walk.plan, rest


class _DependencyCollector:
    """Reads the values that guards read and records the dicts on the way."""

    def __init__(self, root: Source | None, value: Any, written: ObservedWrites) -> None:
        self.plan = SubtreeDependencies()
        self._written = written
        self._module = value
        self._values: dict[Source, Any] = {} if root is None else {root: value}

    def add_guard(self, guard: Guard) -> None:
        """Record the dependencies of a guard.

        Raises:
            NotCovered, LookupError, AttributeError, TypeError: its dependencies cannot be recorded.
        """
        if guard.is_tensor_property:
            self._add_tensor(guard)
            return
        record = _RECORDERS.get(type(guard))
        if record is None:
            raise NotCovered
        record(self, guard)

    def _add_tensor(self, guard: Guard) -> None:
        source = guard.source
        if source in self.plan.tensors:
            return
        if source.parent is not None:
            self._value(source.parent)  # Below, only the tensor's own entry can be one that is replaced.
        try:
            self.plan.tensors[source] = self._value(source)
        except ReplacedTensor as reason:
            self.plan.replaced_tensors[source] = (reason.space, reason.key)
            self.plan.tensors[source] = reason.space[reason.key]
        except InnerTensor as reason:
            self.plan.inner_tensors[source] = (reason.outer, reason.name)
            self.plan.tensors[source] = getattr(reason.outer, reason.name)

    def _add_same_object(self, guard: SameObject) -> None:
        self._value(guard.source), self._value(guard.other)

    def _add_type(self, guard: TypeMatch) -> None:
        if issubclass(guard.type, torch.Tensor):
            self._add_tensor(guard)
            return
        value = self._value(guard.source)
        if guard.type not in _FIXED_CLASS_TYPES:
            self._add_object_class(value)

    def _add_id(self, guard: IdMatch) -> None:
        self._value(guard.source)

    def _add_code(self, guard: CodeMatch) -> None:
        self._add_c_attribute(self._value(guard.source), "__code__")

    def _add_constant(self, guard: EqualsMatch) -> None:
        if not _is_constant(self._value(guard.source)):
            raise NotCovered

    def _add_length(self, guard: LengthMatch) -> None:
        if isinstance(guard.source, ModuleHooksSource):
            self._add_empty_hooks(guard, guard.source)
            return
        value = self._value(guard.source)
        if guard.length == 0 and isinstance(guard.source, ConstantSource) and type(value) in _EMPTY_CHECKED_TYPES:
            self.plan.empty_containers.append(value)
        else:
            self._add_container(guard)

    def _require_holdable(self, value: Any) -> None:
        """Raise ``NotCovered`` for a value that users may want freed."""
        if not self._may_hold(value):
            raise NotCovered

    def _may_hold(self, value: Any) -> bool:
        """Return True if a strong reference to the value is allowed.

        Below a module the value lives as long as the module; elsewhere its lifetime is unknown.
        """
        return self._module is not None or (
            type(value) in _FIXED_CLASS_TYPES
            or isinstance(value, (type, types.ModuleType, property))
            or _is_constant(value)
        )

    def _add_c_attribute(self, owner: Any, name: str) -> Any:
        value = getattr(owner, name)
        if name != "__code__":
            self._require_holdable(value)
        self.plan.attributes[id(owner), name] = (owner, name, value)
        return value

    def _add_attribute_lookup(self, guard: HasAttrGuard) -> None:
        """Record everything that a static attribute lookup depends on."""
        value = self._value(guard.source)
        space = _own_dict(value)
        self._require_plain_lookup(value, "")
        tables = [space] + [t for n in ("_parameters", "_buffers", "_modules") if type(t := space.get(n)) is dict]
        for table in tables:
            self._entry(table, guard.attribute, MISSING)

    def _add_container(self, guard: DictKeysMatch | LengthMatch) -> None:
        value = self._value(guard.source)
        kind = type(value)
        if kind is dict:
            if self._is_written(value):
                raise NotCovered
            self.plan.versioned_dicts[id(value)] = value
        elif kind is list:
            self.plan.lists[id(value)] = value
        elif kind is collections.OrderedDict and not value:
            self.plan.empty_containers.append(value)
        elif kind not in (tuple, str, bytes, torch.Size):
            raise NotCovered

    def _add_empty_hooks(self, guard: LengthMatch, source: ModuleHooksSource) -> None:
        module = self._value(source.base)
        if guard.length:
            raise NotCovered
        for table in ModuleHooksSource.TABLES:
            self.plan.empty_containers.append(self._entry(_own_dict(module), table))

    def _value(self, origin: Source) -> Any:
        if origin not in self._values:
            self._values[origin] = self._read(origin)
        return self._values[origin]

    def _read(self, origin: Source) -> Any:
        match origin:
            case ConstantSource():
                return origin.value
            case GlobalSource():
                self.plan.globals_ids.add(id(origin.namespace.values))
                return self._entry(origin.namespace.values, origin.variable_name)
            case OptionalGlobalSource():
                self.plan.globals_ids.add(id(origin.namespace.values))
                return self._entry(origin.namespace.values, origin.variable_name, MISSING)
            case CellContentsSource():
                return self._add_c_attribute(self._value(origin.base).__closure__[origin.index], "cell_contents")
            case AttrSource():
                base = self._value(origin.base)
                if isinstance(base, type):
                    return self._class_entry(base, origin.attribute)
                if type(base) is types.FunctionType and origin.attribute in _FUNCTION_ATTRIBUTES:
                    return self._add_c_attribute(base, origin.attribute)
                if origin.attribute == "__dict__":
                    return _own_dict(base)
                if type(base) is property and origin.attribute == "fget":
                    return base.fget
                if isinstance(base, torch.Tensor) and self._reads_slot(type(base), origin.attribute):
                    raise InnerTensor(base, origin.attribute)
                self._require_plain_lookup(base, origin.attribute)
                return self._entry(_own_dict(base), origin.attribute)
            case InstanceDictGetSource():
                owner = self._value(origin.base)
                if isinstance(owner, type):
                    self._add_class_dict(_dict_of_class(owner))
                    return vars(owner).get(origin.attribute, MISSING)
                return self._entry(_own_dict(owner), origin.attribute, MISSING)
            case ModuleMemberSource():
                table = self._entry(_own_dict(self._value(origin.base)), origin.table)
                if type(table) is not dict:
                    raise NotCovered
                return self._entry(table, origin.member_name)
            case GetItemSource():
                base = self._value(origin.base)
                kind = type(base)
                if kind is dict and type(origin.key) in (str, int):
                    return self._entry(base, origin.key)
                if kind is list:
                    return self._list_item(base, origin.key)
                if kind is not tuple:
                    raise NotCovered
                return base[origin.key]
            case _:
                raise NotCovered

    def _is_written(self, space: Any) -> bool:
        """Return True if the dict was written between recordings: its entries are compared."""
        return self._written.dicts[id(space)] > 0

    def _entry(self, space: Any, key: Any, *default: Any) -> Any:
        """Return a dict entry, and record the dict as a dependency."""
        value = space.get(key, *default) if default else space[key]
        self.plan.entry_ids[id(space), key] = id(value)
        if not self._is_written(space):
            self.plan.versioned_dicts[id(space)] = space
        else:
            _require_no_tensor(space, key, value)
            if self._is_replaced(space, key, value):
                raise NotCovered
            if value is not MISSING and not self._may_hold(value):
                self._add_object_class(value)  # The entry is compared with a weak reference.
            self.plan.compared_entries.setdefault(id(space), (space, {}))[1][key] = value
        return value

    def _is_replaced(self, space: Any, key: Any, value: Any) -> bool:
        """Return True if the entry is seldom the same object: its identity says nothing.

        A constant costs one guard; below a module there are many, so one replacement is not enough.
        """
        count = self._written.entries[id(space), key]
        return count > 0 and (count >= MAX_REPLACED_OBJECTS or _is_constant(value))

    def _list_item(self, items: list[Any], index: int) -> Any:
        """Return a list item; the check compares it by identity."""
        item = items[index]
        _require_no_tensor(items, index, item)
        self._require_holdable(item)
        self.plan.list_items[id(items), index] = (items, index, item)
        return item

    def _class_entry(self, cls: type, name: str) -> Any:
        """Return a class's own or inherited attribute, as plain access returns it."""
        if type(cls) not in (type, abc.ABCMeta) or hasattr(type(vars(type).get(name)), "__set__"):
            raise NotCovered
        self.plan.attributes[id(cls), "__mro__"] = (cls, "__mro__", cls.__mro__)
        for base in cls.__mro__:
            space = _dict_of_class(base)
            if base is not object:
                self._add_class_dict(space)
            if name in space:
                value = space[name]
                if type(value) not in (types.FunctionType, property) and hasattr(type(value), "__get__"):
                    raise NotCovered
                return value
        raise NotCovered

    def _require_plain_lookup(self, base: Any, name: str) -> None:
        """Require plain attribute access to find the instance's own entry; record what this needs."""
        if type(type(base)) in (type, abc.ABCMeta):
            self.plan.attributes[id(type(base)), "__mro__"] = (type(base), "__mro__", type(base).__mro__)
        for cls in python_objects.mro_of(type(base)):
            space = _dict_of_class(cls)
            entry = space.get(name)
            if entry is not None and hasattr(type(entry), "__set__"):
                raise NotCovered
            # A user ``__getattribute__`` was traced and has its own guards; this is its final plain lookup.
            if cls is not object:
                self._add_class_dict(space)
        if base is not self._module:
            self._add_object_class(base)

    def _reads_slot(self, cls: type, name: str) -> bool:
        """Return True if attribute access reads a slot of the class; record what this needs."""
        space = _dict_of_class(cls)
        lookup: Any = cls.__getattribute__
        if lookup is not object.__getattribute__:
            return False
        if type(space.get(name)) is not types.MemberDescriptorType:
            return False
        self._add_class_dict(space)
        return True

    def _add_object_class(self, value: Any) -> None:
        if self._may_hold(value):
            self.plan.objects[id(value)] = value
        elif type(value).__weakrefoffset__:
            self.plan.weak_objects[id(value)] = value
        else:
            raise NotCovered

    def _add_class_dict(self, space: Any) -> None:
        if self._written.dicts[id(space)] >= MAX_CLASS_CHANGES:
            raise NotCovered
        self.plan.class_dicts[id(space)] = space


_RECORDERS: dict[type[Guard], Callable[[_DependencyCollector, Any], None]] = {
    SameObject: _DependencyCollector._add_same_object,
    TypeMatch: _DependencyCollector._add_type,
    IdMatch: _DependencyCollector._add_id,
    CodeMatch: _DependencyCollector._add_code,
    EqualsMatch: _DependencyCollector._add_constant,
    LengthMatch: _DependencyCollector._add_length,
    DictKeysMatch: _DependencyCollector._add_container,
    HasAttrGuard: _DependencyCollector._add_attribute_lookup,
}
"""Recorder of each kind of guard; guards of other kinds are checked one by one."""


def _require_no_tensor(space: Any, key: Any, value: Any) -> None:
    """Raise ``ReplacedTensor`` for a tensor: checks hold tensors weakly and read them again."""
    if isinstance(value, torch.Tensor):
        raise ReplacedTensor(space, key)


def _own_dict(value: Any) -> dict[str, Any]:
    """Return the dict of an instance's attributes.

    Raises:
        NotCovered: there is no such dict, or the class overrides it.
    """
    own_dict = python_objects.instance_dict(value)
    if isinstance(value, type) or type(own_dict) is not dict or not (isinstance(value, torch.nn.Module) or own_dict):
        raise NotCovered
    track_attribute_writes(value, own_dict)
    return own_dict


def _dict_of_class(cls: type) -> Any:
    """Return the dict behind a class's namespace; writes to the class change its version."""
    (class_dict,) = gc.get_referents(python_objects.class_dict(cls))
    return class_dict


def _is_constant(value: Any) -> bool:
    """Return True if the value is immutable."""
    if type(value) is tuple:
        return all(map(_is_constant, value))
    return (
        type(value) in _CONSTANT_TYPES
        or isinstance(value, type)
        or python_objects.builtin_base(type(value), (enum.Enum,)) is not None
    )


_EMPTY_CHECKED_TYPES = (list, dict, set, collections.OrderedDict)
"""Containers that compute their own truth value."""
_FUNCTION_ATTRIBUTES = ("__code__", "__defaults__", "__closure__", "__kwdefaults__")
_CONSTANT_TYPES = python_objects.IMMUTABLE_TYPES | {frozenset, slice}
