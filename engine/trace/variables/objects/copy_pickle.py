"""Copies of ``copy.copy`` and ``copy.deepcopy``; pickles of plain data."""

from __future__ import annotations

import collections
import copy
import functools
import pickle
import types
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from engine.ir.guards.python_values import DictKeysMatch
from engine.ir.introspection.python_objects import is_heap_type
from engine.ir.sources.attributes import AttrSource
from engine.trace.annotations import Tracer
from engine.trace.exc import Unsupported
from engine.trace.fake_tensors.shared_inputs import SharedInputs
from engine.trace.variables.base import NONE, Args, ConstantVariable, Variable, is_none, realize
from engine.trace.variables.callable_registry import register_bound_rule, register_break, register_rule
from engine.trace.variables.containers.builtin_subclasses import (
    BuiltinSubclassVariable,
    builtin_base_of,
    call_builtin_new,
)
from engine.trace.variables.containers.dicts import DictVariable
from engine.trace.variables.containers.ranges_and_slices import SliceVariable
from engine.trace.variables.containers.sequences import ListVariable, TupleVariable, sequence_items
from engine.trace.variables.containers.sets import SetVariable
from engine.trace.variables.objects.class_lookup import class_source, find_in_class, find_python_method, is_plain_class
from engine.trace.variables.objects.id_and_hash import IdKey
from engine.trace.variables.objects.instance_dicts import dict_entries
from engine.trace.variables.objects.simple_namespace import SimpleNamespaceVariable
from engine.trace.variables.objects.user_defined_objects import UserDefinedObjectVariable


@dataclass(frozen=True, slots=True)
class ReduceParts:
    """Result of ``__reduce_ex__``: constructor, arguments, state, list items and dict items.

    ``uses_new``: the constructor is a class, and its ``__new__`` creates the instance.
    """

    constructor: Variable
    args: Args
    state: Variable = NONE
    list_items: Args = field(default_factory=list)
    dict_items: list[tuple[Variable, Variable]] = field(default_factory=list)
    uses_new: bool = False


def _call_python_method(tx: Tracer, of: Variable, name: str, args: Args) -> Variable | None:
    """Call a method that Python code defines, or return None."""
    is_python = find_python_method(of.python_type(), name) is not None
    return of.call_user_method(tx, name, args) if is_python else None


def reduce_object(tx: Tracer, of: Variable) -> ReduceParts:
    """Reduce an object as ``__reduce_ex__(4)`` does.

    Raises:
        Unsupported: C code without a rule reduces the object.
    """
    reduced = _call_python_method(tx, of, "__reduce_ex__", [ConstantVariable(4)])
    reduced = reduced or _call_python_method(tx, of, "__reduce__", [])
    return _reduce_in_c(of, tx) if reduced is None else _parse_reduce_result(tx, of, reduced)


@functools.singledispatch
def _reduce_in_c(of: Variable, tx: Tracer) -> ReduceParts:
    """Reduce an object whose class leaves that to C code."""
    raise Unsupported("copy", f"copying {of.describe()}")


@_reduce_in_c.register(SliceVariable)
def _reduce_slice(of: SliceVariable, tx: Tracer) -> ReduceParts:
    return ReduceParts(tx.wrap_static(slice), list(of.bounds))


@_reduce_in_c.register(SetVariable)
def _reduce_set(of: SetVariable, tx: Tracer) -> ReduceParts:
    if of.cls not in (set, frozenset):
        raise Unsupported("copy", f"copying {of.describe()}")
    return ReduceParts(tx.wrap_static(of.cls), [ListVariable(list(of.elements.values()))])


@_reduce_in_c.register(UserDefinedObjectVariable)
def _reduce_plain_object(of: UserDefinedObjectVariable, tx: Tracer) -> ReduceParts:
    if type(of) is not UserDefinedObjectVariable or not is_plain_class(of.cls):
        raise Unsupported("copy", f"copying {of.describe()}")
    return _default_reduce(of, tx)


_SIMPLE_NAMESPACE = types.SimpleNamespace


def _parse_reduce_result(tx: Tracer, of: Variable, result: Variable) -> ReduceParts:
    """Parse the result tuple of ``__reduce__``."""
    result = realize(tx, result)
    parts = [realize(tx, i) for i in sequence_items(tx, result)] if issubclass(result.python_type(), tuple) else []
    if not 2 <= len(parts) <= 5:
        raise Unsupported("copy", f"the result of __reduce__ of {of.describe()} is used")
    parts += [NONE] * 3
    items = [] if is_none(parts[3]) else list(sequence_items(tx, parts[3]))
    pairs = [] if is_none(parts[4]) else [sequence_items(tx, p) for p in sequence_items(tx, parts[4])]
    return ReduceParts(parts[0], list(sequence_items(tx, parts[1])), parts[2], items, [(p[0], p[1]) for p in pairs])


@_reduce_in_c.register(BuiltinSubclassVariable)
@_reduce_in_c.register(SimpleNamespaceVariable)
def _default_reduce(of: UserDefinedObjectVariable, tx: Tracer) -> ReduceParts:
    """Implement ``object.__reduce_ex__``."""
    if find_python_method(of.cls, "__getnewargs_ex__") is not None:
        raise Unsupported("copy", f"__getnewargs_ex__ of {of.describe()} is called")
    slots = _slots(tx, of)
    new_args = _call_python_method(tx, of, "__getnewargs__", [])
    args = None if new_args is None else list(tx.unpack_iterable(new_args))
    contents = _reduce_contents(of.builtin_contents, tx, of, args)
    return replace(contents, constructor=tx.wrap(of.cls, class_source(of.cls)), state=_read_state(tx, of, slots))


@functools.singledispatch
def _reduce_contents(inner: Variable, tx: Tracer, of: Variable, args: Args | None) -> ReduceParts:
    """Reduce the builtin contents of an object; ``args`` are those of ``__getnewargs__``.

    A number, string or tuple is an argument of ``__new__``.
    """
    contents = [] if inner is of else [inner]
    return ReduceParts(NONE, contents if args is None else args, uses_new=True)


@_reduce_contents.register(ListVariable)
def _reduce_list_contents(inner: ListVariable, tx: Tracer, of: Variable, args: Args | None) -> ReduceParts:
    return ReduceParts(NONE, args or [], list_items=list(inner.items), uses_new=True)


@_reduce_contents.register(DictVariable)
def _reduce_dict_contents(inner: DictVariable, tx: Tracer, of: Variable, args: Args | None) -> ReduceParts:
    base = builtin_base_of(of.python_type())
    pairs = [sequence_items(tx, pair) for pair in sequence_items(tx, of.call_method(tx, "items", [], {}))]
    if base is collections.defaultdict:
        args = [inner.default_factory or NONE]
    return ReduceParts(NONE, args or [], dict_items=[(p[0], p[1]) for p in pairs], uses_new=base is dict)


@_reduce_contents.register(SetVariable)
def _reduce_set_contents(inner: SetVariable, tx: Tracer, of: Variable, args: Args | None) -> ReduceParts:
    return ReduceParts(NONE, [ListVariable(list(inner.elements.values()))])


def _has_new(cls: type) -> bool:
    new_method = find_in_class(cls, "__new__")
    return new_method is not None and new_method.function is not None


def _slots(tx: Tracer, of: UserDefinedObjectVariable) -> dict[str, Variable]:
    names = [
        name
        for base in of.cls.__mro__
        for name, entry in vars(base).items()
        if type(entry) is types.MemberDescriptorType and is_heap_type(base)
    ]
    if names and of.source is not None and not of.is_constructed:
        raise Unsupported("copy", f"copying {of.describe()}, which has __slots__")
    return {name: value for name in names if (value := of.attr_writes.get(name)) is not None}


def _read_state(tx: Tracer, of: UserDefinedObjectVariable, slots: dict[str, Variable]) -> Variable:
    state = _call_python_method(tx, of, "__getstate__", [])
    if state is not None:
        return state
    attributes_state: Variable = NONE
    if not of.has_no_dict() or of.python_type() is _SIMPLE_NAMESPACE:
        attributes = of.get_attr(tx, "__dict__")
        entries = dict_entries(attributes)
        if entries:
            attributes_state = attributes if attributes is of else DictVariable(dict(entries))
    return TupleVariable([attributes_state, DictVariable.from_str_keys(slots)]) if slots else attributes_state


def _call_new(tx: Tracer, cls: Variable, args: Args) -> Variable:
    """Call ``cls.__new__(cls, *args)``."""
    real = cls.as_python_object()
    if _has_new(real):
        return realize(tx, cls.get_attr(tx, "__new__")).call(tx, [cls, *args], {})
    base = builtin_base_of(real)
    if base is not None:
        return call_builtin_new(tx, real, base, args, {})
    kind = SimpleNamespaceVariable if real is _SIMPLE_NAMESPACE else UserDefinedObjectVariable
    return kind(real, None, NotImplemented)


def _apply_state(tx: Tracer, instance: Variable, state: Variable) -> None:
    if not instance.lacks_methods("__setstate__"):
        realize(tx, instance.get_attr(tx, "__setstate__")).call(tx, [state], {})
        return
    pair = sequence_items(tx, state) if issubclass(state.python_type(), tuple) else ()
    attributes, slots = (realize(tx, i) for i in pair) if len(pair) == 2 else (state, NONE)
    if not is_none(attributes):
        into = realize(tx, instance.get_attr(tx, "__dict__"))
        for name, value in tx.unpack_string_mapping(attributes.builtin_contents).items():
            into.set_item(tx, ConstantVariable(name), value)
    if not is_none(slots):
        for name, value in tx.unpack_string_mapping(slots).items():
            instance.set_attr(tx, name, value)


class _Copier:
    """Copies objects; an object that occurs twice is copied once."""

    def __init__(self, tx: Tracer) -> None:
        self.tx = tx
        self.copies: dict[int, tuple[Variable, Variable]] = {}
        """Copies by id of the variable; the variable is stored too, so that its id stays unique."""

    def __call__(self, value: Variable) -> Variable:
        """Return the copy of a variable."""
        of = realize(self.tx, value)
        copied = self.known_copy(of)
        if copied is None:
            copied = self.copy(of)
            self.keep(of, copied)
        return copied

    def known_copy(self, of: Variable) -> Variable | None:
        """Return the copy of a variable that was copied before, or None."""
        entry = self.copies.get(id(of))
        return None if entry is None else entry[0]

    def keep(self, of: Variable, copied: Variable) -> None:
        """Remember a copy: a container before its items are copied, as it may contain itself."""
        self.copies[id(of)] = (copied, of)

    def copy(self, of: Variable) -> Variable:
        """Copy a variable that was not copied before."""
        raise NotImplementedError

    def rebuild(self, of: Variable, parts: ReduceParts) -> Variable:
        """Rebuild an object from copies of its parts, as ``copy._reconstruct`` does."""
        tx, args = self.tx, [self(a) for a in parts.args]
        rebuilt = realize(
            tx, _call_new(tx, parts.constructor, args) if parts.uses_new else parts.constructor.call(tx, args, {})
        )
        self.keep(of, rebuilt)
        if not is_none(parts.state):
            _apply_state(tx, rebuilt, realize(tx, self(parts.state)))
        for item in parts.list_items:
            realize(tx, rebuilt.get_attr(tx, "append")).call(tx, [self(item)], {})
        for key, value in parts.dict_items:
            rebuilt.set_item(tx, realize(tx, self(key)), self(value))
        return rebuilt


@functools.singledispatch
def _copy_container(of: Variable, copier: _Copier) -> Variable | None:
    """Copy a builtin container and its items; return None for anything else."""
    return None


@_copy_container.register(ListVariable)
def _copy_list(of: ListVariable, copier: _Copier) -> Variable | None:
    copied_list = ListVariable([], None, of.cls, of.maxlen)
    copier.keep(of, copied_list)
    copied_list.items.extend(map(copier, list(of.items)))
    return copied_list


@_copy_container.register(TupleVariable)
def _copy_tuple(of: TupleVariable, copier: _Copier) -> Variable | None:
    parts = [copier(i) for i in of.items]
    is_same = of.cls is tuple and all(map(_is_unchanged, of.items, parts))
    return of if is_same else TupleVariable(parts, of.cls)


@_copy_container.register(DictVariable)
def _copy_dict(of: DictVariable, copier: _Copier) -> Variable | None:
    copied_dict = DictVariable({}, None, of.cls, of.default_factory)
    copier.keep(of, copied_dict)
    for hash_key, (key, value) in list(of.entries.items()):
        copied_key = copier(key)
        if not _is_unchanged(key, copied_key):
            raise Unsupported("copy", "copy.deepcopy() of a dict whose keys are copied")
        copied_dict.entries[hash_key] = (copied_key, copier(value))
    copied_dict.attributes.update((name, copier(value)) for name, value in of.attributes.items())
    return copied_dict


@_copy_container.register(SetVariable)
def _copy_set(of: SetVariable, copier: _Copier) -> Variable | None:
    is_same = all(_is_unchanged(element, copier(element)) for element in of.elements.values())
    return SetVariable(dict(of.elements), None, of.cls) if is_same else None


@_copy_container.register(ConstantVariable)
def _copy_constant(of: ConstantVariable, copier: _Copier) -> Variable | None:
    """Copy a date or path: the copy is another object."""
    return None if of.is_copied_by_reference else ConstantVariable(copy.copy(of.value))


def _is_unchanged(value: Variable, copied: Variable) -> bool:
    return (copied.is_constant and copied.is_copied_by_reference) or copied.resolved is value.resolved


# The copy module.


class _ShallowCopier(_Copier):
    """Implements ``copy.copy``: it copies one object, with its items as they are."""

    def __call__(self, value: Variable) -> Variable:
        return value

    def copy(self, of: Variable) -> Variable:
        if of.is_copied_by_reference or of.python_type() in (slice, frozenset):
            return of
        copied = _copy_container(of, self) or _call_python_method(self.tx, of, "__copy__", [])
        if copied is None and builtin_base_of(of.python_type()) is collections.defaultdict:
            copied = realize(self.tx, of.get_attr(self.tx, "copy")).call(self.tx, [], {})
        return copied or self.rebuild(of, reduce_object(self.tx, of))


register_rule(copy.copy)(lambda tx, args, kwargs: _ShallowCopier(tx).copy(realize(tx, args[0])))


class _DeepCopier(_Copier):
    """Implements ``copy.deepcopy``. ``memo`` is the dict that it passes to ``__deepcopy__``."""

    def __init__(self, tx: Tracer) -> None:
        super().__init__(tx)
        self.memo = DeepcopyMemoVariable(self)
        self.storages: set[int] = set()
        """Storages of copied tensors: copies of two tensors that share one share a copy of it."""

    def known_copy(self, of: Variable) -> Variable | None:
        entry = self.memo.entries.get(IdKey(self.tx, of)) if self.memo.entries and of.is_mutable else None
        return super().known_copy(of) if entry is None else entry[1]

    def copy(self, of: Variable) -> Variable:
        if of.is_copied_by_reference:
            return of
        self.tx.objects.as_identity_key(of)
        copied = _call_python_method(self.tx, of, "__deepcopy__", [self.memo])
        if copied is None and of.fake is not None and self._equals_clone(of):
            copied = of.call_method(self.tx, "clone", [], {})
        return copied or _copy_container(of, self) or self.rebuild(of, reduce_object(self.tx, of))

    def _equals_clone(self, of: Any) -> bool:
        """Return True if a deep copy of a tensor, with its whole storage, equals a clone."""
        fake, storage = of.fake, of.fake.untyped_storage()
        is_clone = of.python_type() is torch.Tensor and not fake.requires_grad and not of.attr_writes
        is_clone = is_clone and not getattr(of.real_object, "__dict__", None)
        if storage._cdata in self.storages:
            self.tx.state_of(SharedInputs).require_identity(of.real_object)
            is_clone = False
        if not is_clone or storage.nbytes() != fake.nbytes or fake.stride() != torch.empty_like(fake).stride():
            return False
        self.storages.add(storage._cdata)
        if of.source is not None:
            self.tx.guard(DictKeysMatch, AttrSource(of.source, "__dict__"), (), why="attributes are copied too")
        return True


class DeepcopyMemoVariable(DictVariable):
    """The memo dict that ``deepcopy`` passes to ``__deepcopy__``: copies by object id."""

    __slots__ = ("copier",)

    def __init__(self, copier: _DeepCopier) -> None:
        super().__init__({})
        self.copier = copier


@register_bound_rule(copy.deepcopy)
def _deepcopy(tx: Tracer, x: Variable, memo: Variable = NONE) -> Variable:
    if isinstance(memo, DeepcopyMemoVariable):
        return memo.copier(x)
    if not is_none(memo) and (not issubclass(memo.python_type(), dict) or memo.is_truthy(tx)):
        raise Unsupported("copy", "copy.deepcopy() with a user-defined memo")
    return _DeepCopier(tx)(x)


register_break("pickle", "an object is pickled or unpickled", pickle.dumps, pickle.loads)
