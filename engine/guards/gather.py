"""What many guards together depend on: dictionaries not written to, classes, attributes of functions, empty tables, tensors."""

from __future__ import annotations

import abc
import collections
import enum
import gc
import types
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from engine.guards.tensors import follow_attributes
from engine.ir import exact
from engine.ir.guard import Guard
from engine.ir.origin import MISSING, Attr, CellOf, Fixed, Global, Hooks, Item, Maybe, MaybeGlobal, Member, Origin
from engine.ir.relation_guard import SameObject
from engine.ir.tensor_guard import Facet
from engine.ir.value_guard import CodeIs, DictKeys, Equals, HasAttribute, IsObject, LengthIs, TypeIs

WRITTEN_OFTEN = 3
"""How often a dictionary may turn out written to before its entries are compared instead of its version."""

_SETTLED = (
    type(None), bool, int, float, complex, str, bytes, torch.dtype, torch.device, torch.layout, torch.memory_format, torch.Size,
    types.FunctionType, types.BuiltinFunctionType, types.MethodType, tuple, list, dict, set, frozenset, range, slice,
)  # fmt: skip
"""Types whose instances cannot be given another ``__class__``."""


class Uncovered(Exception):
    """A value is not reached through dictionaries alone."""


@dataclass
class Plan:
    """What stands for the guards below one module, gathered while they hold."""

    versions: dict[int, Any] = field(default_factory=dict)
    """Dictionaries whose version is compared, by id."""
    classes: dict[int, Any] = field(default_factory=dict)
    """The same for the dictionaries of classes."""
    entries: dict[int, tuple[Any, dict[Any, Any]]] = field(default_factory=dict)
    """Dictionaries that are written to often, with the entries that matter (``MISSING``: absent)."""
    objects: dict[int, Any] = field(default_factory=dict)
    """Objects whose class is compared."""
    lent: dict[int, Any] = field(default_factory=dict)
    """The same of objects that a person may want freed: to be held weakly."""
    namespaces: set[int] = field(default_factory=set)
    """Ids of the dictionaries that hold globals."""
    attributes: dict[tuple[int, str], tuple[Any, str, Any]] = field(default_factory=dict)
    """(object, attribute, value) for attributes that are read in C: of functions, cells and classes."""
    hooks: list[Any] = field(default_factory=list)
    tensors: dict[Origin, Any] = field(default_factory=dict)


def gather(root: Origin | None, value: Any, guards: Sequence[Guard], written: Counter[int]) -> tuple[Plan, list[Guard]]:
    """What stands for the guards, and those that nothing can stand for."""
    walk = _Walk(root, value, written)
    rest: list[Guard] = []
    for guard in guards:
        try:
            walk.cover(guard)
        except (Uncovered, LookupError, AttributeError, TypeError):
            rest.append(guard)
    spoilt = {o for o in walk.plan.tensors for g in rest if g.origin == o}
    for origin in spoilt:
        del walk.plan.tensors[origin]
        rest += [g for g in guards if g.origin == origin and g not in rest]
    return walk.plan, rest


class _Walk:
    """Reads what guards read, and notes through which dictionaries."""

    def __init__(self, root: Origin | None, value: Any, written: Counter[int]) -> None:
        self.plan = Plan()
        self._written = written
        self._module = value
        self._values: dict[Origin, Any] = {} if root is None else {root: value}

    def cover(self, guard: Guard) -> None:
        """Note what stands for a guard.

        Raises:
            Uncovered, LookupError, AttributeError, TypeError: nothing does.
        """
        if isinstance(guard.origin, Hooks):
            self._no_hooks(guard)
            return
        if isinstance(guard, SameObject):
            self._value(guard.origin), self._value(guard.other)
            return
        value = self._value(guard.origin)
        if isinstance(guard, Facet) or (isinstance(guard, TypeIs) and issubclass(guard.type, torch.Tensor)):
            self.plan.tensors.setdefault(guard.origin, value)
        elif isinstance(guard, TypeIs):
            if guard.type not in _SETTLED:
                self._keep(value)
                self.plan.objects[id(value)] = value
        elif isinstance(guard, CodeIs):
            self._attribute(value, "__code__")
        elif isinstance(guard, Equals):
            if not _is_constant(value):
                raise Uncovered
        elif (
            isinstance(guard, LengthIs)
            and guard.length == 0
            and isinstance(guard.origin, Fixed)
            and type(value) in _EMPTY
        ):
            self.plan.hooks.append(value)
        elif isinstance(guard, (DictKeys, LengthIs)):
            self._sized(value)
        elif isinstance(guard, HasAttribute):
            self._looked_up(value)
        elif not isinstance(guard, IsObject):
            raise Uncovered

    def _keep(self, value: Any) -> None:
        """Refuse to keep what a person may want freed."""
        if not self._is_to_keep(value):
            raise Uncovered

    def _is_to_keep(self, value: Any) -> bool:
        """Whether a value may be held: below a module it lives as long as that; elsewhere nothing says so."""
        return self._module is not None or (
            type(value) in _SETTLED or isinstance(value, (type, types.ModuleType, property)) or _is_constant(value)
        )

    def _attribute(self, owner: Any, name: str) -> Any:
        found = getattr(owner, name)
        if name != "__code__":
            self._keep(found)
        self.plan.attributes[id(owner), name] = (owner, name, found)
        return found

    def _looked_up(self, value: Any) -> None:
        """Note everything that looking for an attribute without running code depends on."""
        space = _own_dict(value)
        self._plain(value, "")
        found = [space] + [t for n in ("_parameters", "_buffers", "_modules") if type(t := space.get(n)) is dict]
        if any(self._written[id(s)] >= WRITTEN_OFTEN for s in found):
            raise Uncovered
        self.plan.versions.update((id(s), s) for s in found)

    def _sized(self, value: Any) -> None:
        if type(value) is dict:
            if self._written[id(value)] >= WRITTEN_OFTEN:
                raise Uncovered
            self.plan.versions[id(value)] = value
        elif type(value) not in (tuple, str, bytes, torch.Size):
            raise Uncovered

    def _no_hooks(self, guard: Guard) -> None:
        module = self._value(guard.origin.base)  # type: ignore[attr-defined]
        if not (isinstance(guard, LengthIs) and guard.length == 0):
            raise Uncovered
        for table in Hooks.TABLES:
            self.plan.hooks.append(self._entry(_own_dict(module), table))

    def _value(self, origin: Origin) -> Any:
        if origin not in self._values:
            self._values[origin] = self._read(origin)
        return self._values[origin]

    def _read(self, origin: Origin) -> Any:
        match origin:
            case Fixed():
                return origin.held
            case Global():
                self.plan.namespaces.add(id(origin.namespace.values))
                return self._entry(origin.namespace.values, origin.variable)
            case MaybeGlobal():
                self.plan.namespaces.add(id(origin.namespace.values))
                return self._entry(origin.namespace.values, origin.variable, MISSING)
            case CellOf():
                return self._attribute(self._value(origin.base).__closure__[origin.index], "cell_contents")
            case Attr():
                base = self._value(origin.base)
                if isinstance(base, type):
                    return self._class_entry(base, origin.attribute)
                if type(base) is types.FunctionType and origin.attribute in _OF_FUNCTIONS:
                    return self._attribute(base, origin.attribute)
                if origin.attribute == "__dict__":
                    return _own_dict(base)
                if type(base) is property and origin.attribute == "fget":
                    return base.fget
                self._plain(base, origin.attribute)
                return self._entry(_own_dict(base), origin.attribute)
            case Maybe():
                owner = self._value(origin.base)
                if isinstance(owner, type):
                    self._class(_dict_of_class(owner))
                    return vars(owner).get(origin.attribute, MISSING)
                return self._entry(_own_dict(owner), origin.attribute, MISSING)
            case Member():
                table = self._entry(_own_dict(self._value(origin.base)), origin.table)
                if type(table) is not dict:
                    raise Uncovered
                return self._entry(table, origin.member)
            case Item():
                base = self._value(origin.base)
                if type(base) is dict and type(origin.key) in (str, int):
                    return self._entry(base, origin.key)
                if type(base) is not tuple:
                    raise Uncovered
                return base[origin.key]
            case _:
                raise Uncovered

    def _entry(self, space: Any, key: Any, *default: Any) -> Any:
        """An entry of a dictionary; the dictionary takes part in the question from now on."""
        found = space.get(key, *default) if default else space[key]
        if self._written[id(space)] < WRITTEN_OFTEN:
            self.plan.versions[id(space)] = space
        elif isinstance(found, torch.Tensor):
            # Kept weakly only, which takes a dictionary that is known to keep it.
            raise Uncovered
        else:
            self._keep(found)
            self.plan.entries.setdefault(id(space), (space, {}))[1][key] = found
        return found

    def _class_entry(self, cls: type, name: str) -> Any:
        """A class's own or inherited attribute, as plain access gives it."""
        if type(cls) not in (type, abc.ABCMeta) or hasattr(type(vars(type).get(name)), "__set__"):
            raise Uncovered
        self.plan.attributes[id(cls), "__mro__"] = (cls, "__mro__", cls.__mro__)
        for base in cls.__mro__:
            space = _dict_of_class(base)
            if base is not object:
                self._class(space)
            if name in space:
                found = space[name]
                if type(found) not in (types.FunctionType, property) and hasattr(type(found), "__get__"):
                    raise Uncovered
                return found
        raise Uncovered

    def _plain(self, base: Any, name: str) -> None:
        """Make sure that plain attribute access finds the instance's own entry, and go on making sure."""
        if type(type(base)) in (type, abc.ABCMeta):
            self.plan.attributes[id(type(base)), "__mro__"] = (type(base), "__mro__", type(base).__mro__)
        for cls in exact.mro_of(type(base)):
            space = _dict_of_class(cls)
            found = space.get(name)
            if found is not None and hasattr(type(found), "__set__"):
                raise Uncovered
            # A ``__getattribute__`` of the user's was traced and is guarded itself: what reads through it here is the plain look-up at its end.
            if cls is not object:
                self._class(space)
        if base is not self._module:
            self._compare_class(base)

    def _compare_class(self, value: Any) -> None:
        if self._is_to_keep(value):
            self.plan.objects[id(value)] = value
        elif type(value).__weakrefoffset__:
            self.plan.lent[id(value)] = value
        else:
            raise Uncovered

    def _class(self, space: Any) -> None:
        if self._written[id(space)] >= WRITTEN_OFTEN:
            raise Uncovered
        self.plan.classes[id(space)] = space


def _own_dict(value: Any) -> dict[str, Any]:
    """The dictionary behind an instance's attributes.

    Raises:
        Uncovered: it has none, or its class answers for it.
    """
    found = exact.instance_dict(value)
    if isinstance(value, type) or type(found) is not dict or not (isinstance(value, torch.nn.Module) or found):
        raise Uncovered
    follow_attributes(value, found)
    return found


def _dict_of_class(cls: type) -> Any:
    """The dictionary behind a class's namespace: its version moves when the class is written to."""
    (found,) = gc.get_referents(exact.class_dict(cls))
    return found


def _is_constant(value: Any) -> bool:
    """Whether a value cannot change without being another object."""
    if type(value) is tuple:
        return all(map(_is_constant, value))
    return (
        type(value) in _CONSTANT or isinstance(value, type) or exact.builtin_base(type(value), (enum.Enum,)) is not None
    )


_EMPTY = (list, dict, set, collections.OrderedDict)
"""Containers that say themselves whether they are empty."""
_OF_FUNCTIONS = ("__code__", "__defaults__", "__closure__", "__kwdefaults__")
_CONSTANT = frozenset(
    (*exact.SINGLETONS, int, float, complex, str, bytes, torch.device, torch.Size, range, frozenset, slice)
)
