"""Variables for set and frozenset."""

from __future__ import annotations

import functools
from types import (
    BuiltinFunctionType,
    FunctionType,
    GetSetDescriptorType,
    MethodDescriptorType,
    MethodWrapperType,
    WrapperDescriptorType,
)
from typing import Any

from engine.frame_code.codegen_runtime.containers import refill_set
from engine.ir.guards.python_values import EqualsMatch, LengthMatch
from engine.ir.introspection.python_operators import Operator
from engine.ir.register_once import register_each
from engine.ir.sources.base import Source
from engine.ir.sources.containers import BuiltinValueSource
from engine.trace.annotations import PyCodegen, Tracer
from engine.trace.exc import Unsupported
from engine.trace.operators.operand import OperatorResult
from engine.trace.variables.base import Args, ConstantVariable, Kwargs, Variable, realize
from engine.trace.variables.builder import is_literal, register_builder, register_sourceless_builder
from engine.trace.variables.callables.methods import builtin_attribute
from engine.trace.variables.containers.iterators import DictOrSetIteratorVariable, iterator_of
from engine.trace.variables.containers.method_table import MethodTable, realize_stored
from engine.trace.variables.containers.sequences import TupleVariable, sequence_items
from engine.trace.variables.objects.id_and_hash import check_keys_rebuildable, mark_stored
from engine.trace.variables.slotted_type import state
from engine.trace.variables.stdlib.string_format import format_proxy, hashable_proxy

_GUARDABLE_ELEMENT_TYPES = (
    *(type, tuple, frozenset, FunctionType, BuiltinFunctionType),
    *(MethodDescriptorType, MethodWrapperType, WrapperDescriptorType, GetSetDescriptorType),
)
"""Set element types that a guard can compare, because their instances are immutable."""


SET_OPERATORS = {"|": "union", "&": "intersection", "-": "difference", "^": "symmetric_difference"}
"""By operator of sets, the name of the method."""


class SetVariable(Variable):
    """A set or frozenset: ``elements`` maps hash keys to elements, in insertion order."""

    mutation_words = "contents of the {} are replaced"
    elements: dict[Any, Variable]
    source: Source | None = None
    cls: type = set
    real_order: tuple[Any, ...] = state(())
    """Elements of an existing set in its real iteration order, which depends on its history."""
    literal: frozenset[Any] | None = state(None)
    """The constant value of the set, or the constant that built its set display.

    While the elements are unchanged, codegen rebuilds the set from this constant.
    """
    order_observed_at: int | None = state(None)
    """Number of the instruction before which an unspecified iteration order was observed.

    After that instruction, no rebuilt set may replace this one: its order could differ.
    """
    is_mutable = True
    is_set_like = True
    must_not_be_copied = True

    @classmethod
    def from_items(cls, tx: Tracer, items: list[Variable], kind: type = set) -> SetVariable:
        """Build a new set from ``items``."""
        elements: dict[Any, Variable] = {}
        for item in [realize_stored(tx, i) for i in items]:
            elements.setdefault(hash_key := item.hash_key(tx), item)
            mark_stored(hash_key)
        return cls(elements, None, kind)

    @property
    def set_contents(self) -> SetVariable:
        return self

    @property
    def builtin_class(self) -> type:
        """The builtin class, ``set`` or ``frozenset``; set operations return it."""
        return frozenset if issubclass(self.cls, frozenset) else set

    def format_contents(self, tx: Tracer, proxies: dict[int, Any]) -> Any:
        if self.cls not in (set, frozenset) or len(self.elements) != 1:
            return None
        proxy: set[Any] = set()
        if self.cls is set:
            proxies[id(self)] = proxy
        proxy.update(hashable_proxy(format_proxy(tx, item)) for item in self.elements.values())
        return proxy if self.cls is set else frozenset(proxy)

    def describe(self) -> str:
        return f"{self.cls.__name__} of {len(self.elements)}"

    def as_python_constant(self, tx: Tracer) -> Any:
        if self._is_literal() and not self._is_unmodified() and all(map(is_literal, self.elements)):
            equivalent = self._equivalent_real_set()
            return equivalent if type(equivalent) is self.builtin_class else self.builtin_class(equivalent)
        return self.builtin_class(realize(tx, e).as_python_constant(tx) for e in self.elements.values())

    def hash_key(self, tx: Tracer) -> Any:
        if self.builtin_class is set:
            tx.raise_error(TypeError, "unhashable type: 'set'", is_exact=False)
        return frozenset(self.elements)

    def child_variables(self) -> list[Variable]:
        return list(self.elements.values())

    def is_truthy(self, tx: Tracer) -> bool:
        return bool(self.elements)

    def length(self, tx: Tracer) -> Variable:
        return ConstantVariable(len(self.elements))

    def binary(self, tx: Tracer, op: Operator, right: Variable) -> OperatorResult:
        other = right.set_contents
        if op.symbol not in SET_OPERATORS or other is None:
            return NotImplemented
        return self.combine(tx, SET_OPERATORS[op.symbol], other)

    def reflected(self, tx: Tracer, op: Operator, left: Variable) -> OperatorResult:
        other = left.set_contents
        return NotImplemented if other is None else other.binary(tx, op, self)

    def inplace(self, tx: Tracer, op: Operator, right: Variable) -> OperatorResult:
        if self.builtin_class is not set or op.plain is None:
            return NotImplemented
        combined = self.binary(tx, op.plain, right)
        if combined is NotImplemented:
            return NotImplemented
        tx.side_effects.record_mutation(self)
        self.elements = combined.elements
        return self

    def compare(self, tx: Tracer, op: Operator, right: Variable) -> OperatorResult:
        other = right.set_contents
        if other is None:
            return NotImplemented
        return ConstantVariable(op.function(set(self.elements), set(other.elements)))

    def contains(self, tx: Tracer, item: Variable) -> bool:
        return _lookup_key(tx, item) in self.elements

    def iteration_order(self, tx: Tracer) -> list[Variable]:
        """Return the elements in the iteration order of the real set.

        If hashes are fixed and the set is an unmodified input, guard on its order.
        If the order depends on the addresses of existing objects, raise Unsupported.
        """
        if len(self.elements) <= 1:
            return list(self.elements.values())
        if self.has_fixed_hashes(tx):
            if self._is_unmodified() and self.source is not None:
                why = "the order of its elements decided what was traced"
                tx.guard(EqualsMatch, BuiltinValueSource(self.source, tuple), self.real_order, why=why)
            return [self.elements[k] for k in self._equivalent_real_set()]
        if all(_hashes_by_new_identity(k, v) or _has_fixed_hash(tx, k, v) for k, v in self.elements.items()):
            if self.order_observed_at is None:
                self.order_observed_at = tx.instruction_counter.root_instruction_number
            return list(self.elements.values())
        raise self.unsupported("iterating in an order that depends on object addresses", "object-address")

    def copy_as(self, tx: Tracer, kind: Any) -> SetVariable:
        """Return ``kind(self)``; the elements are not hashed again."""
        if self.has_fixed_hashes(tx):
            return SetVariable.from_items(tx, self.iteration_order(tx), kind)
        return SetVariable(dict(self.elements), None, kind)

    def has_fixed_hashes(self, tx: Tracer) -> bool:
        """Return True if each element hashes like its hash key, so the iteration order is known."""
        return all(_has_fixed_hash(tx, k, v) for k, v in self.elements.items())

    def _equivalent_real_set(self) -> Any:
        """Return a real set, built as codegen builds it, that iterates in the same order."""
        if self._is_unmodified():
            return self.real_order
        real_set: set[Any] = set()
        if self.literal is not None and self._is_literal():
            if self.cls is frozenset:
                return self.literal
            real_set.update(self.literal)
        for key in self.elements:
            real_set.add(key)
        return real_set if self.cls is not frozenset else frozenset(real_set)

    def _is_unmodified(self) -> bool:
        return bool(self.real_order) and self.elements.keys() == set(self.real_order)

    def _is_literal(self) -> bool:
        return self.literal is not None and list(self.literal) == list(self.elements)

    def get_iterator(self, tx: Tracer) -> Variable:
        ordered = [realize(tx, item).hash_key(tx) for item in self.iteration_order(tx)]
        return DictOrSetIteratorVariable(
            [], type(iter(set())), ordered, self._read_element, lambda: _current_keys(self), "Set", self
        )

    def _read_element(self, key: Any) -> Variable | None:
        return self.elements.get(key)

    def get_attr(self, tx: Tracer, name: str) -> Variable:
        return builtin_attribute(tx, self, name)

    def call_method(self, tx: Tracer, name: str, args: Args, kwargs: Kwargs) -> Variable:
        return SET_METHODS.call(self, tx, name, args, kwargs)

    def combine(self, tx: Tracer, operation: str, other: SetVariable) -> SetVariable:
        """Return the new set of a binary set operation, named by its method."""
        all_elements = {**other.elements, **self.elements}
        chosen = getattr(set(self.elements), operation)(set(other.elements))
        order = [k for k in (*self.elements, *other.elements) if k in chosen]
        return SetVariable({k: all_elements[k] for k in dict.fromkeys(order)}, None, self.builtin_class)

    def reconstruct(self, cg: PyCodegen) -> None:
        _check_order_not_observed(self)
        if self.cls is set and cg.is_cyclic(self):
            cg.body.emit("BUILD_SET", 0)
            cg.defer_fill(self)
            return
        if self.cls is set and self._is_literal():
            cg.body.emit("BUILD_SET", 0)
            cg.load_const(self.literal)
            cg.body.emit("SET_UPDATE", 1)
            return
        if self.cls is frozenset and self._is_literal():
            cg.load_const(self.literal)
            return
        check_keys_rebuildable(self.elements, self.cls.__name__)
        if self.cls is not set:
            cg.body.callable(lambda: cg.load_const(self.cls))
        cg.build("BUILD_SET", list(self.elements.values()))
        if self.cls is not set:
            cg.body.call(1)

    def fill(self, cg: PyCodegen) -> None:
        """Emit code that pops the existing set on the stack and replaces its contents."""
        _check_order_not_observed(self)
        check_keys_rebuildable(self.elements, self.cls.__name__)
        cg.pop_into_call(refill_set, TupleVariable(list(self.elements.values())))


def _check_order_not_observed(of: SetVariable) -> None:
    """Check that no traced code has observed an unspecified iteration order.

    Raises:
        Unsupported: the order depends on addresses, so a set rebuilt after the graph may have another order.
    """
    if of.order_observed_at is not None:
        what = "rebuilding a set whose order depends on object addresses after the graph"
        raise Unsupported("object-address", what, created_at=of.order_observed_at)


def _current_keys(of: SetVariable) -> list[Any]:
    return list(of._equivalent_real_set()) if all(map(is_literal, of.elements)) else list(of.elements)


# Methods of set and frozenset.

SET_METHODS = MethodTable()


def _is_mutable_set(of: SetVariable) -> bool:
    return of.builtin_class is set


@SET_METHODS.method("add", condition=_is_mutable_set)
def _add(self: SetVariable, tx: Tracer, item: Variable) -> None:
    hash_key = item.hash_key(tx)
    if hash_key not in self.elements:
        tx.side_effects.record_mutation(self)
        self.elements[hash_key] = item
        mark_stored(hash_key)


@SET_METHODS.method("discard", condition=_is_mutable_set)
def _discard(self: SetVariable, tx: Tracer, item: Variable) -> None:
    if (hash_key := _lookup_key(tx, item)) in self.elements:
        tx.side_effects.record_mutation(self)
        del self.elements[hash_key]


@SET_METHODS.method("remove", condition=_is_mutable_set)
def _remove(self: SetVariable, tx: Tracer, item: Variable) -> None:
    if (hash_key := _lookup_key(tx, item)) not in self.elements:
        tx.raise_key_error(item)
    tx.side_effects.record_mutation(self)
    del self.elements[hash_key]


@SET_METHODS.method("update", mutates=True, condition=_is_mutable_set)
def _update(self: SetVariable, tx: Tracer, *others: Variable) -> None:
    for other in others:
        contents = other.set_contents
        if contents is not None and contents.cls is frozenset and contents.source is None and not self.elements:
            self.literal = contents.literal if len(others) == 1 else self.literal  # a set display is one update
        if contents is not None and not contents.has_fixed_hashes(tx):  # copying does not call __hash__ again
            for hash_key, item in contents.elements.items():
                self.elements.setdefault(hash_key, item)
            continue
        for item in sequence_items(tx, contents or other):
            self.elements.setdefault(hash_key := realize(tx, item).hash_key(tx), item)
            mark_stored(hash_key)


@SET_METHODS.method("clear", mutates=True, condition=_is_mutable_set)
def _clear(self: SetVariable, tx: Tracer) -> None:
    self.elements.clear()


@SET_METHODS.method("pop", condition=_is_mutable_set)
def _pop(self: SetVariable, tx: Tracer) -> Variable:
    if not self.elements:
        tx.raise_error(KeyError, "pop from an empty set")
    first = realize(tx, self.iteration_order(tx)[0])
    tx.side_effects.record_mutation(self)
    del self.elements[first.hash_key(tx)]
    return first


@SET_METHODS.method("__init__", condition=_is_mutable_set)
def _init(self: SetVariable, tx: Tracer, *args: Variable, **kwargs: Variable) -> None:
    if kwargs or len(args) > 1:
        tx.fold_constant(set, *[()] * len(args), **dict.fromkeys(kwargs))
    tx.side_effects.record_mutation(self)
    self.elements.clear()
    _update(self, tx, *args)


@SET_METHODS.method("copy", "__copy__")
def _copy(self: SetVariable, tx: Tracer) -> SetVariable:
    return self if self.cls is frozenset else SetVariable(dict(self.elements), None, self.builtin_class)


@register_each(SET_METHODS.method, "union", "intersection", "difference", "symmetric_difference")
def _combine(operation: str, self: SetVariable, tx: Tracer, *others: Variable) -> SetVariable:
    result = self if others else SetVariable(dict(self.elements), None, self.builtin_class)
    for other in others:
        result = result.combine(tx, operation, _as_set(tx, other))
    return result


_mutating_method = functools.partial(SET_METHODS.method, condition=_is_mutable_set)


@register_each(_mutating_method, "intersection_update", "difference_update", "symmetric_difference_update")
def _combine_in_place(name: str, self: SetVariable, tx: Tracer, *others: Variable) -> None:
    elements = _combine(name.removesuffix("_update"), self, tx, *others).elements
    tx.side_effects.record_mutation(self)
    self.elements = elements


@register_each(SET_METHODS.method, "issubset", "issuperset")
def _compare_sets(name: str, self: SetVariable, tx: Tracer, other: Variable) -> Variable:
    return ConstantVariable(getattr(set(self.elements), name)(set(_as_set(tx, other).elements)))


@SET_METHODS.method("isdisjoint")
def _isdisjoint(self: SetVariable, tx: Tracer, other: Variable) -> Variable:
    contents = other.set_contents
    if contents is not None and contents is other:
        return ConstantVariable(set(self.elements).isdisjoint(contents.elements))
    # Checks one item at a time and stops at the first common element, as Python does.
    items = iterator_of(tx, other)
    while (item := items.next_item(tx)) is not None:
        if self.contains(tx, realize(tx, item)):
            return ConstantVariable(False)
    return ConstantVariable(True)


def _as_set(tx: Tracer, other: Variable) -> SetVariable:
    """Collect the items of any iterable into a set; an ``__iter__`` of a set is not called."""
    contents = other.set_contents
    if contents is not None:
        return SetVariable(dict(contents.elements), None, contents.builtin_class)
    return SetVariable.from_items(tx, sequence_items(tx, other))


def _lookup_key(tx: Tracer, item: Variable) -> Any:
    """Return the hash key for a lookup; a set is looked up as a frozenset, as in Python."""
    contents = item.set_contents
    if contents is not None and contents.builtin_class is set:
        return frozenset(contents.elements)
    return item.hash_key(tx)


def _hashes_by_new_identity(key: Any, value: Variable) -> bool:
    """Return True if the element hashes by identity and was created while tracing.

    Its address is not defined yet, so Python may place it anywhere in the order.
    """
    return value.builtin_contents is key and key.source is None


def _has_fixed_hash(tx: Tracer, key: Any, value: Variable) -> bool:
    """Return True if the hash key of an element has the same hash as the element."""
    value = realize(tx, value)
    if is_literal(key) or isinstance(key, (BuiltinFunctionType, FunctionType, MethodDescriptorType)):
        return True
    if isinstance(key, type):
        return key not in tx.objects.new_classes
    if value.python_type() is frozenset and value.set_contents is not None:
        return all(_has_fixed_hash(tx, k, v) for k, v in value.set_contents.elements.items())
    if value.python_type() is tuple and value.sequence_contents is not None:
        return all(_has_fixed_hash(tx, k, v) for k, v in zip(key, value.sequence_contents.items, strict=True))
    return False


@register_builder(set, frozenset)
def build_set(tx: Tracer, real: Any, source: Source) -> SetVariable:
    """Build the variable of a real set or frozenset, guarded by its elements.

    An instance of a subclass is read as a plain set. Elements must be literals or guardable immutable objects.
    """
    base = next(b for b in type(real).__mro__ if b in (set, frozenset))
    if not all(is_literal(item) or isinstance(item, _GUARDABLE_ELEMENT_TYPES) for item in base.__iter__(real)):
        raise Unsupported("unsupported-value", f"a {type(real).__name__} of objects")
    why = "its elements decided what was traced"
    tx.guard_type(real, source, why)
    tx.guard(LengthMatch, source, base.__len__(real), why=why)
    plain: Any = base(real) if type(real) is base else base.copy(real)
    contents_source = source if type(real) is base else BuiltinValueSource(source, base)
    tx.guard(EqualsMatch, contents_source, plain, why=why)
    value = SetVariable.from_items(tx, [tx.from_python(e) for e in plain], type(real))
    value.source = source
    value.real_order = tuple(base.__iter__(real))
    return value


@register_sourceless_builder(set, frozenset)
def _make_set(tx: Tracer, value: Any) -> Variable:
    variable = SetVariable.from_items(tx, [tx.from_python(v) for v in value], type(value))
    variable.literal = value if type(value) is frozenset and all(map(is_literal, value)) else None
    return variable
