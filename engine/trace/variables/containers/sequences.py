"""Variables for list, tuple, namedtuple, torch.Size, structseq and deque."""

from __future__ import annotations

import collections
import functools
import math
import operator
import sys
from collections.abc import Callable, Iterator
from dataclasses import field
from typing import Any

import torch
import torch.fx

from engine.frame_code.codegen_runtime.containers import extend_deque, list_with_appended, refill_deque, refill_list
from engine.ir.guards.python_values import EqualsMatch, LengthMatch
from engine.ir.introspection import python_objects
from engine.ir.introspection.literal_types import PLAIN_LITERAL_TYPES
from engine.ir.introspection.python_operators import Operator
from engine.ir.introspection.symbols import has_unbacked_symbols
from engine.ir.register_once import register_table
from engine.ir.sources.attributes import AttrSource, MethodResultSource
from engine.ir.sources.base import Source
from engine.ir.sources.containers import ContentsSource, HasItemsSource, LengthSource, item_source
from engine.trace.annotations import PyCodegen, Tracer
from engine.trace.emit_node import build_node_result, wrap_items
from engine.trace.operators.arithmetic import binary_op, compare_op, identical_or_equal, sort_items
from engine.trace.operators.operand import OperatorResult
from engine.trace.symbols.value_names import unknown_value_break
from engine.trace.variables.base import Args, ConstantVariable, Kwargs, UserErrors, Variable, realize
from engine.trace.variables.builder import register_builder, register_builder_if, register_sourceless_builder
from engine.trace.variables.callables.methods import builtin_attribute
from engine.trace.variables.containers.iterators import SequenceIteratorVariable
from engine.trace.variables.containers.method_table import MethodTable
from engine.trace.variables.objects.attribute_binding import class_attribute
from engine.trace.variables.stdlib.string_format import ReprText, format_proxy
from engine.trace.variables.tensors.automatic_dynamic import is_dynamic_number


def sequence_items(tx: Tracer, value: Variable) -> list[Variable]:
    """Return the items of a sequence, or exhaust the iterator of any other iterable."""
    return realize(tx, value).iterated_items(tx)


def has_many_literals(items: Any) -> bool:
    """Return True for a long sequence of numbers, strings and None."""
    return len(items) >= _MANY_ITEMS and {*map(type, items)} <= PLAIN_LITERAL_TYPES


def items_or_value(tx: Tracer, value: Variable) -> list[Variable]:
    """Return the items of a tuple; the value alone if it is anything else."""
    return list(sequence_items(tx, value)) if issubclass(value.python_type(), tuple) else [value]


_ITERATOR_TYPES: dict[type, type] = {cls: type(iter(cls())) for cls in (list, tuple, collections.deque)}


_MAX_SIZES = 16
"""Maximum number of items of a list of sizes."""
_MAX_LIST_LENGTH = sys.maxsize // 8
"""A list cannot have more items than this."""
_MANY_ITEMS = 4096
"""Number of plain items from which on a sequence that is read as a whole has one guard."""
_CONTAINER_ERRORS = (IndexError, TypeError, ValueError, OverflowError, MemoryError)


class SequenceVariable(Variable):
    """Base class of tuple and list variables: ``items`` in order, each possibly lazy.

    The contents of an external sequence load lazily: ``load_items`` returns its items on first use. Until then
    ``appended`` holds only the items appended during tracing. ``external`` is the real sequence.
    """

    appended: list[Variable]
    load_items: Callable[[], list[Variable]] | None = field(default=None, kw_only=True)
    external: Any = field(default=(), kw_only=True)

    @property
    def items(self) -> list[Variable]:
        """The current items; the first read loads an external sequence and guards on its length."""
        if self.load_items is not None:
            read, self.load_items = self.load_items, None
            self.appended = [*read(), *self.appended]
            self.drop_excess()
        return self.appended

    @items.setter
    def items(self, items: list[Variable]) -> None:
        self.appended, self.load_items = items, None

    def drop_excess(self) -> None:
        """Drop the first items of a bounded deque that has too many."""

    def pytree_parts(self, tx: Tracer) -> tuple[type, tuple[Any, ...], list[Variable]] | None:
        return self.python_type(), (), self.items

    @property
    def sequence_contents(self) -> SequenceVariable:
        return self

    def as_python_constant(self, tx: Tracer) -> Any:
        return self._build_real(tx.as_python_constants(self.iterated_items(tx)))

    def _build_real(self, items: list[Any]) -> Any:
        return self.python_type()(items)

    def child_variables(self) -> list[Variable]:
        return self.appended

    def describe(self) -> str:
        if self.load_items is not None:
            return f"{self.python_type().__name__} (not read yet)"
        items = ", ".join(i.describe() for i in self.items[:4]) + (", ..." if len(self.items) > 4 else "")
        return f"{self.python_type().__name__} of {len(self.items)} [{items}]"

    def is_truthy(self, tx: Tracer) -> bool:
        if self.load_items is None or self.source is None or not self.external:
            return bool(self.appended or self.items)
        if not self.appended:
            tx.guard(EqualsMatch, HasItemsSource(self.source), True, why="its truth value was tested")
        return True

    def length(self, tx: Tracer) -> Variable:
        return ConstantVariable(len(self.items))

    def as_node_arg(self, tx: Tracer) -> tuple[Any, Any]:
        pairs = [realize(tx, i).as_node_arg(tx) for i in self.iterated_items(tx)]
        return self._build_arg([p[0] for p in pairs]), self._build_arg([p[1] for p in pairs])

    def _build_arg(self, items: list[Any]) -> Any:
        return items

    def argument_items(self) -> list[Variable]:
        return self.items

    def as_sizes(self, tx: Tracer) -> Variable:
        if len(self.items) > _MAX_SIZES:
            return self
        items = [realize(tx, item) for item in self.items]
        sizes = [item.as_sizes(tx) for item in items]
        return TupleVariable(sizes) if any(a is not b for a, b in zip(sizes, items, strict=True)) else self

    def get_item(self, tx: Tracer, key: Variable) -> Variable:
        item = self.apply(tx, operator.getitem, as_index(tx, key))
        return self.make_slice(list(item)) if key.python_type() is slice else item

    def apply(self, tx: Tracer, function: Callable[..., Any], *args: Any) -> Any:
        """Call ``function`` with the items; its errors are those of the builtin class."""
        try:
            return function(self.items, *args)
        except _CONTAINER_ERRORS:
            with UserErrors(tx, *_CONTAINER_ERRORS):
                return function(self.builtin_class(self.items), *args)

    def iterated_items(self, tx: Tracer) -> list[Variable]:
        if self.load_items is not None and self.source is not None and has_many_literals(self.external):
            # One guard and one constant an item: a variable and a guard for each would take minutes.
            source = ContentsSource(self.source)
            why = "all its items were read"
            tx.guard(EqualsMatch, source, source.read(self.external), why=why)
            items: list[Variable] = [
                ConstantVariable(v, item_source(self.external, self.source, n)) for n, v in enumerate(self.external)
            ]
            self.load_items = lambda: items
        return self.items

    def make_slice(self, items: list[Variable]) -> Variable:
        """Build the variable of a slice that has the same type as ``self``."""
        raise NotImplementedError

    @property
    def builtin_class(self) -> type:
        """The builtin class of the contents: list, tuple or deque."""
        return self.python_type()

    def repeat(self, tx: Tracer, op: Operator, times: Variable) -> OperatorResult:
        if not issubclass(times.python_type(), int):
            return NotImplemented
        count = times.as_python_constant(tx)
        if len(self.items) * count >= _MAX_LIST_LENGTH:
            if abs(count) > sys.maxsize:
                tx.raise_error(OverflowError, "cannot fit 'int' into an index-sized integer")
            raise tx.make_user_exception(MemoryError())
        return self._repeat(tx, op, count)

    def _repeat(self, tx: Tracer, op: Operator, count: int) -> Variable:
        raise NotImplementedError

    def compare(self, tx: Tracer, op: Operator, right: Variable) -> OperatorResult:
        other = self._same_kind(right)
        if other is None:
            return NotImplemented
        if op.is_equality:
            same = self._equals_at_run_time(tx, other) or ConstantVariable(self._equals(tx, other))
            return same if op.symbol == "==" else compare_op(tx, "==", same, ConstantVariable(False))
        for a, b in zip(self.items, other.items, strict=False):
            if not identical_or_equal(tx, realize(tx, a), realize(tx, b)):
                return compare_op(tx, op.symbol, a, b)
        return tx.fold_constant(op.function, len(self.items), len(other.items))

    def _same_kind(self, other: Variable) -> SequenceVariable | None:
        """Return the contents of the other operand if its builtin class is the same."""
        contents = other.sequence_contents
        return contents if contents is not None and contents.builtin_class is self.builtin_class else None

    def _equals(self, tx: Tracer, other: SequenceVariable) -> bool:
        if len(self.items) != len(other.items):
            return False
        index = 0
        while index < min(len(self.items), len(other.items)):  # comparing may mutate the lists
            if not identical_or_equal(tx, realize(tx, self.items[index]), realize(tx, other.items[index])):
                return False
            index += 1
        return len(self.items) == len(other.items)

    def _equals_at_run_time(self, tx: Tracer, other: SequenceVariable) -> Variable | None:
        """Return equality as a condition on unbacked numbers; None for other items."""
        items = [*self.items, *other.items]
        if len(self.items) != len(other.items) or not any(has_unbacked_symbols(v.resolved.sym) for v in items):
            return None
        numbers = [realize(tx, v) for v in items]
        if not all(v.is_symbolic or v.is_constant for v in numbers):
            return None
        conditions: list[Variable] = []
        for left, right in zip(numbers[: len(self.items)], numbers[len(self.items) :], strict=True):
            same = compare_op(tx, "==", left, right)
            if has_unbacked_symbols(same.sym):
                conditions.append(same)
            elif not identical_or_equal(tx, left, right):
                return ConstantVariable(False)
        return functools.reduce(functools.partial(binary_op, tx, "&"), conditions or [ConstantVariable(True)])

    def contains(self, tx: Tracer, item: Variable) -> bool:
        return any(identical_or_equal(tx, realize(tx, i), item) for i in self.items)

    def get_iterator(self, tx: Tracer) -> Variable:
        cls = self.python_type()
        return SequenceIteratorVariable(self.items, _ITERATOR_TYPES.get(cls, type(iter(()))), iterable=self)

    def get_attr(self, tx: Tracer, name: str) -> Variable:
        return builtin_attribute(tx, self, name)

    def call_method(self, tx: Tracer, name: str, args: Args, kwargs: Kwargs) -> Variable:
        return SEQUENCE_METHODS.call(self, tx, name, args, kwargs)


SEQUENCE_METHODS = MethodTable()


@SEQUENCE_METHODS.method("index")
def _index(self: SequenceVariable, tx: Tracer, item: Variable, /, *bounds: Variable) -> Variable:
    within = slice(*[as_index(tx, a) for a in bounds], *_OPEN_SLICE_END[len(bounds)])
    for n in range(len(self.items))[within]:
        if n >= len(self.items):  # a user-defined __eq__ removed items during the search
            break
        if identical_or_equal(tx, realize(tx, self.items[n]), item):
            return ConstantVariable(n)
    return tx.raise_error(ValueError, f"{item.describe()} is not in {self.python_type().__name__}", is_exact=False)


@SEQUENCE_METHODS.method("count")
def _count(self: SequenceVariable, tx: Tracer, item: Variable, /) -> Variable:
    return ConstantVariable(sum(identical_or_equal(tx, realize(tx, i), item) for i in self.items))


_OPEN_SLICE_END: dict[int, tuple[None, ...]] = {0: (None,), 1: (None,), 2: ()}
"""Bounds that complete the search slice of ``index``, by the number of its bounds."""


def _index_in_input(tx: Tracer, key: Variable) -> int:
    """Return the number in an unmodified CPU input, with a guard.

    A number that changed between calls is not specialized.

    Raises:
        Unsupported: the tensor's value is not known while tracing.
    """
    real: Any = key.as_python_object()
    used = key.node_or_none
    has_no_users = used is None or not used.users  # nothing in the graph wrote to it, also not through an alias
    are_unmodified = all(v.fake.is_inference() or v.fake._version == n for v, n in tx.inputs.input_tensors)
    is_plain = key.source is not None and key.python_type() is torch.Tensor and key.fake.device.type == "cpu"
    if not (has_no_users and are_unmodified and is_plain):
        raise unknown_value_break(tx, key)
    assert key.source is not None
    number = MethodResultSource(key.source, "item")
    is_integer = key.fake.numel() == 1 and not (key.fake.is_floating_point() or key.fake.is_complex())
    if not is_integer or -1 in tx.request.dynamic_dims.get(number.expr, ()):
        raise unknown_value_break(tx, key)
    index = real.item()
    tx.guard(EqualsMatch, number, index, why="it is an index of a Python container")
    return int(index)


def as_index(tx: Tracer, key: Variable) -> Any:
    """Return an index as a Python int if it has one, else the constant.

    The number in a tensor that the call passes is guarded.

    Raises:
        Unsupported: the index is another tensor, or an object without ``__index__``.
    """
    if key.fake is not None:
        of: Any = key
        scalar = of.known_scalar(tx)
        return _index_in_input(tx, key) if scalar is None or type(scalar.constant) is float else int(scalar.constant)
    if key.is_user_object:
        key = key.call_user_method(tx, "__index__", []) or key
    if key.is_user_object and not tx.is_python_constant(key):
        raise key.unsupported("using it as an index", "builtin-arguments")
    value = key.as_python_constant(tx)
    return int(value) if isinstance(value, bool) else value


class TupleVariable(SequenceVariable):
    """A tuple, namedtuple, ``torch.Size`` or structseq; ``cls`` is its real class.

    ``prefix`` is the tuple that the items were appended to before it was read.
    """

    cls: type = tuple
    source: Source | None = None
    prefix: TupleVariable | None = None

    def format_contents(self, tx: Tracer, proxies: dict[int, Any]) -> Any:
        if self.cls is not tuple:
            return None
        proxies[id(self)] = ReprText("(...)")
        try:
            return tuple(format_proxy(tx, item) for item in self.items)
        finally:
            del proxies[id(self)]

    def _build_real(self, items: list[Any]) -> Any:
        if self.is_namedtuple():
            return self.cls(*items)
        return self.cls(items)

    @property
    def builtin_class(self) -> type:
        return tuple

    @property
    def is_singleton(self) -> bool:  # type: ignore[override]
        return self.cls is tuple and not self.items

    def is_same_as(self, tx: Tracer, other: Variable) -> bool | None:
        return True if other.python_type() is tuple and self.is_singleton and other.is_singleton else None

    def concat(self, tx: Tracer, op: Operator, right: Variable) -> OperatorResult:
        other, cls = self._same_kind(right), right.python_type()
        if other is None:
            return NotImplemented
        if self.cls is tuple and cls is tuple and self.load_items is not None and other.appended:
            is_copied = self.is_truthy(tx)
            return TupleVariable(list(other.items), load_items=lambda: self.items, prefix=self) if is_copied else other
        if self.cls is tuple and cls is tuple and not (self.items and other.items):
            return self if self.items else other
        makes_size = self.cls is torch.Size or (cls is torch.Size and hasattr(torch.Size, "__radd__"))
        return TupleVariable([*self.items, *other.items], torch.Size if makes_size else tuple)

    def _repeat(self, tx: Tracer, op: Operator, count: int) -> Variable:
        if count == 1 and self.cls is tuple:
            return self
        return TupleVariable(self.items * count, self.cls if self.cls is torch.Size else tuple)

    def is_namedtuple(self) -> bool:
        """Return True for an instance of a ``collections.namedtuple`` class."""
        return self.cls is not tuple and hasattr(self.cls, "_fields") and issubclass(self.cls, tuple)

    def _build_arg(self, items: list[Any]) -> Any:
        return tuple(items)

    def make_slice(self, items: list[Variable]) -> Variable:
        if self.cls is tuple and len(items) == len(self.items) and all(map(operator.is_, items, self.items)):
            return self
        return TupleVariable(items, torch.Size if self.cls is torch.Size else tuple)

    def hash_key(self, tx: Tracer) -> Any:
        return tuple(realize(tx, i).hash_key(tx) for i in self.items)

    def get_attr(self, tx: Tracer, name: str) -> Variable:
        if self.is_namedtuple():
            if name in self.cls._fields:  # type: ignore[attr-defined]
                return self.items[self.cls._fields.index(name)]  # type: ignore[attr-defined]
            if name == "_fields":
                return tx.from_python(self.cls._fields)  # type: ignore[attr-defined]
            is_own = name == "__getnewargs__" or not hasattr(tuple, name)
            if is_own and (attribute := class_attribute(tx, self.cls, name, self)) is not None:
                return attribute
        elif self.cls.__module__ == "torch.return_types" and (index := _structseq_index(self.cls, name)) is not None:
            return self.items[index]
        return super().get_attr(tx, name)

    def call_method(self, tx: Tracer, name: str, args: Args, kwargs: Kwargs) -> Variable:
        if self.is_namedtuple() and (name == "__getnewargs__" or not hasattr(tuple, name)):
            return realize(tx, self.get_attr(tx, name)).call(tx, args, kwargs)
        if name == "numel" and self.cls is torch.Size:
            return realize(tx, tx.wrap_static(math.prod).call(tx, [TupleVariable(list(self.items))], {}))
        return super().call_method(tx, name, args, kwargs)

    def reconstruct(self, cg: PyCodegen) -> None:
        if self.load_items is not None:
            cg.call(operator.add, self.prefix, TupleVariable(self.appended))
            return
        if self.cls is tuple:
            cg.build("BUILD_TUPLE", self.items)
            return
        cg.call(self.cls, *(self.items if self.is_namedtuple() else [TupleVariable(self.items)]))


def _structseq_index(cls: type, name: str) -> int | None:
    fields = [f for f in dir(cls) if type(getattr(cls, f)).__name__ == "member_descriptor"]
    for f in fields:
        if f == name:
            sample = cls(range(cls.n_fields))  # type: ignore[attr-defined]
            return int(getattr(sample, name))
    return None


class ListVariable(SequenceVariable):
    """A list or deque that holds its own contents; all aliases share this one object.

    ``prefix`` is the external sequence that the list is a copy of. The list is read before that sequence changes.
    """

    mutation_words = "contents of the {} are replaced"
    source: Source | None = None
    cls: type = list
    maxlen: int | None = None
    prefix: SequenceVariable | None = field(default=None, kw_only=True)
    lazy_copies: list[ListVariable] = field(default_factory=list, kw_only=True)
    is_mutable = True
    must_not_be_copied = True

    def drop_excess(self) -> None:
        if self.maxlen is not None:
            del self.appended[: max(0, len(self.appended) - self.maxlen)]

    @property
    def _is_lazy_copy(self) -> bool:
        """True if neither the list nor the sequence that it is a copy of was read."""
        return self.load_items is not None and self.prefix is not None and self.prefix.load_items is not None

    @property
    def reconstruct_before_break(self) -> bool:  # type: ignore[override]
        return self._is_lazy_copy

    def before_mutation(self) -> None:
        copies, self.lazy_copies = self.lazy_copies, []
        for copy in copies:
            copy.items = list(copy.items)

    def length(self, tx: Tracer) -> Variable:
        """Return the length: a symbol if it changed between calls and no item was read."""
        if self.prefix is not None and self._is_lazy_copy:
            return binary_op(tx, "+", self.prefix.length(tx), ConstantVariable(len(self.appended)))
        if self.load_items is None or self.source is None or not is_dynamic_number(tx, LengthSource(self.source)):
            return super().length(tx)
        read_length = realize(tx, tx.wrap(len(self.external), LengthSource(self.source)))
        total = binary_op(tx, "+", read_length, ConstantVariable(len(self.appended))) if self.appended else read_length
        if self.appended and self.maxlen is not None:
            is_full = compare_op(tx, ">", total, ConstantVariable(self.maxlen))
            total = ConstantVariable(self.maxlen) if realize(tx, is_full).is_truthy(tx) else total
        return total

    def concat(self, tx: Tracer, op: Operator, right: Variable) -> OperatorResult:
        if op.plain is not None:
            self.call_method(tx, "extend", [right], {})
            return self
        other = self._same_kind(right)
        return NotImplemented if other is None else self.make_slice([*self.items, *other.items])

    def _repeat(self, tx: Tracer, op: Operator, count: int) -> Variable:
        repeated = self.make_slice(self.items * count)
        if op.plain is None:
            return repeated
        tx.side_effects.record_mutation(self)
        self.items[:] = repeated.items
        return self

    @property
    def builtin_class(self) -> type:
        return collections.deque if issubclass(self.cls, collections.deque) else list

    def format_contents(self, tx: Tracer, proxies: dict[int, Any]) -> Any:
        if self.cls not in (list, collections.deque):
            return None
        proxy: Any = [] if self.cls is list else collections.deque(maxlen=self.maxlen)
        proxies[id(self)] = proxy
        proxy.extend(format_proxy(tx, item) for item in self.items)
        return proxy

    def _build_real(self, items: list[Any]) -> Any:
        return collections.deque(items, self.maxlen) if self.cls is collections.deque else items

    def make_slice(self, items: list[Variable]) -> ListVariable:
        if self.cls is not collections.deque:
            return ListVariable(items)
        last_items = items if self.maxlen is None else items[max(0, len(items) - self.maxlen) :]
        return ListVariable(last_items, None, self.cls, self.maxlen)

    def apply(self, tx: Tracer, function: Callable[..., Any], *args: Any) -> Any:
        if self.builtin_class is list:
            with UserErrors(tx, *_CONTAINER_ERRORS):
                return function(self.items, *args)
        real = collections.deque(self.items, self.maxlen)
        with UserErrors(tx, *_CONTAINER_ERRORS):
            result = function(real, *args)
        self.items[:] = real
        return result

    def change(self, tx: Tracer, function: Callable[..., Any], *args: Any) -> Any:
        """Mutate the list by a function of the real list or deque."""
        tx.side_effects.record_mutation(self)
        return self.apply(tx, function, *args)

    def set_item(self, tx: Tracer, key: Variable, value: Variable) -> None:
        replacement: Any = value
        if key.python_type() is slice:  # Python words the error for a value that is not iterable
            is_iterable = not realize(tx, value).lacks_methods("__iter__", "__getitem__")
            replacement = list(sequence_items(tx, value)) if is_iterable else None
        self.change(tx, operator.setitem, as_index(tx, key), replacement)

    def del_item(self, tx: Tracer, key: Variable) -> None:
        self.change(tx, operator.delitem, as_index(tx, key))

    def get_attr(self, tx: Tracer, name: str) -> Variable:
        if name == "maxlen" and self.cls is collections.deque:
            return ConstantVariable(self.maxlen)
        return super().get_attr(tx, name)

    def append(self, tx: Tracer, value: Variable) -> None:
        """Append ``value``; a full deque drops its first item."""
        tx.side_effects.record_mutation(self)
        self.appended.append(value)
        self.drop_excess()

    def call_method(self, tx: Tracer, name: str, args: Args, kwargs: Kwargs) -> Variable:
        return LIST_METHODS.call(self, tx, name, args, kwargs)

    def reconstruct(self, cg: PyCodegen) -> None:
        if self.cls is not list:
            cg.call(self.cls, TupleVariable(self.items), self.maxlen)
            return
        if self.prefix is not None and self._is_lazy_copy:
            cg.call(list_with_appended, self.prefix, TupleVariable(self.prefix.appended))
            cg.build("BUILD_LIST", self.appended)
            cg.body.emit("LIST_EXTEND", 1)
            return
        if cg.is_cyclic(self):
            cg.body.emit("BUILD_LIST", 0)
            cg.defer_fill(self)
            return
        cg.build("BUILD_LIST", self.items)

    def fill(self, cg: PyCodegen) -> None:
        """Emit code that pops the existing list on the stack and replaces its contents.

        If the list was never loaded, the code only appends the new items.
        """
        for copy in self.lazy_copies:
            cg.load(copy)
            cg.body.emit("POP_TOP")
        if self.load_items is not None and self.cls is collections.deque:
            cg.pop_into_call(extend_deque, TupleVariable(self.appended))
            return
        if self.load_items is not None:
            cg.build("BUILD_LIST", self.appended)
            cg.body.emit("LIST_EXTEND", 1)
            cg.body.emit("POP_TOP")
            return
        if self.cls is list:
            cg.build("BUILD_LIST", self.items)
            cg.body.emit("SWAP", 2)
            cg.load_const(None)
            cg.load_const(None)
            cg.body.emit("BUILD_SLICE", 2)
            cg.body.emit("STORE_SUBSCR")
            return
        cg.pop_into_call(refill_list if self.builtin_class is list else refill_deque, TupleVariable(self.items))


# Methods of list and deque.

LIST_METHODS = MethodTable(SEQUENCE_METHODS)


def _is_deque(of: ListVariable) -> bool:
    return of.builtin_class is collections.deque


_deque_method = functools.partial(LIST_METHODS.method, condition=_is_deque)


@register_table(LIST_METHODS.method, {"pop": 1, "insert": 1, "clear": 0, "reverse": 0})
@register_table(_deque_method, {"popleft": 0, "appendleft": 0, "rotate": 1})
def _run_directly(name: str, numbers: int, self: ListVariable, tx: Tracer, *args: Variable) -> Variable | None:
    """Run a method without comparisons on the real list or deque of variables."""
    call_args = [as_index(tx, a) if n < numbers else a for n, a in enumerate(args)]
    result: Variable | None = self.change(tx, operator.methodcaller(name, *call_args))
    return result


@LIST_METHODS.method("append")
def _append(self: ListVariable, tx: Tracer, value: Variable) -> None:
    self.append(tx, value)


@LIST_METHODS.method("copy")
@LIST_METHODS.method("__copy__", condition=_is_deque)
def _copy(self: ListVariable, tx: Tracer) -> Variable:
    return (None if _is_deque(self) else lazy_copy(self)) or self.make_slice(list(self.items))


def lazy_copy(of: Any) -> ListVariable | None:
    """Return a list of the items of an external sequence of which none is read yet."""
    is_plain = of.sequence_contents is of and of.python_type() in _ITERATOR_TYPES and of.source is not None
    if not is_plain or of.load_items is None or not of.external:
        return None
    copied = ListVariable([], load_items=lambda: list(of.items), external=of.external, prefix=of)
    if of.is_mutable:
        of.lazy_copies.append(copied)
    return copied


@LIST_METHODS.method("__init__", mutates=True)
def _init(self: ListVariable, tx: Tracer, items: Variable | None = None) -> None:
    self.items.clear()
    if items is not None:
        _extend(self, tx, items)


@LIST_METHODS.method("extend", mutates=True)
def _extend(self: ListVariable, tx: Tracer, items: Variable) -> None:
    for item in _iterate_into(tx, items, self):
        self.append(tx, item)


@LIST_METHODS.method("extendleft", mutates=True, condition=_is_deque)
def _extendleft(self: ListVariable, tx: Tracer, items: Variable) -> None:
    for item in _iterate_into(tx, items, self):
        self.apply(tx, operator.methodcaller("appendleft", item))


def _iterate_into(tx: Tracer, value: Variable, into: ListVariable) -> Iterator[Variable]:
    """Iterate over the items of any iterable, for insertion into ``into``.

    A Python iterator takes its next step only after the previous item was inserted. ``into`` itself is snapshotted.
    """
    contents = value.sequence_contents
    if contents is not None and (contents is value or contents is into):
        yield from list(contents.items)
        return
    iterator = realize(tx, value.get_iterator(tx))
    while (item := iterator.next_item(tx)) is not None:
        yield item


@LIST_METHODS.method("remove", mutates=True)
def _remove(self: ListVariable, tx: Tracer, item_to_remove: Variable) -> None:
    for n, item in enumerate(self.items):
        if identical_or_equal(tx, realize(tx, item), item_to_remove):
            del self.items[n]
            return
    tx.raise_error(ValueError, f"{item_to_remove.describe()} is not in {self.python_type().__name__}", is_exact=False)


@LIST_METHODS.method("sort", mutates=True, condition=lambda of: not _is_deque(of))
def _sort(self: ListVariable, tx: Tracer, /, **kwargs: Variable) -> None:
    items, self.items[:] = list(self.items), []  # Python's list.sort leaves the list empty while it sorts
    in_order = items
    try:
        with tx.side_effects.recording_mutations() as changed:
            in_order = sort_items(tx, items, kwargs)
    finally:
        self.items[:] = in_order
    if any(value is self for value in changed):
        tx.raise_error(ValueError, "list modified during sort")


@build_node_result.register(list)
def _list_result(result: list[Any], tx: Tracer, node: torch.fx.Node) -> Variable:
    return ListVariable(wrap_items(tx, node, result))


@build_node_result.register(tuple)
def _tuple_result(result: tuple[Any, ...], tx: Tracer, node: torch.fx.Node) -> Variable:
    return TupleVariable(wrap_items(tx, node, result), type(result))


def read_items(tx: Tracer, real: Any, source: Source) -> list[Variable]:
    """Make the items of a real sequence lazily; guard on its type and length."""
    why = "it was unpacked, indexed or iterated"
    tx.guard_type(real, source, why)
    tx.guard(LengthMatch, source, python_objects.builtin_len(real), why=why)
    plainly: Any = next(b for b in type(real).__mro__ if b in _ITERATOR_TYPES)
    return [tx.make_lazy(item, item_source(real, source, n)) for n, item in enumerate(plainly.__iter__(real))]


@register_builder(list, why="it was used as a list")
def _list(tx: Tracer, real: Any, source: Source) -> Variable:
    return ListVariable([], source, load_items=lambda: read_items(tx, real, source), external=real)


@register_builder(collections.deque, why="it was used as a deque")
def _deque(tx: Tracer, real: Any, source: Source) -> Variable:
    tx.guard(EqualsMatch, AttrSource(source, "maxlen"), real.maxlen, why="its maxlen decides which items remain")
    kind = collections.deque
    if real.maxlen == 0:
        return ListVariable(read_items(tx, real, source), source, kind, 0)
    return ListVariable([], source, kind, real.maxlen, load_items=lambda: read_items(tx, real, source), external=real)


@register_builder(tuple, why="it was used as a tuple")
def _tuple(tx: Tracer, real: Any, source: Source) -> Variable:
    return TupleVariable([], tuple, source, load_items=lambda: read_items(tx, real, source), external=real)


def _is_size_or_namedtuple(real: Any) -> bool:
    kind: Any = type(real)
    return kind is torch.Size or kind.__module__ == "torch.return_types" or is_plain_namedtuple(kind)


def is_plain_namedtuple(cls: type) -> bool:
    """Return True for a namedtuple class without instance dict or overridden tuple methods."""
    if not (issubclass(cls, tuple) and hasattr(cls, "_fields")):
        return False
    overridden = {n for c in cls.__mro__[: cls.__mro__.index(tuple)] for n in vars(c) if n in _TUPLE_METHODS}
    return cls.__dictoffset__ == 0 and not overridden


_TUPLE_METHODS = frozenset(
    "__add__ __mul__ __rmul__ __eq__ __ne__ __lt__ __le__ __gt__ __ge__ __hash__ __len__ __iter__ __getitem__ __contains__ "
    "__bool__ __str__ __reversed__ __radd__ __sub__ __neg__ __getattr__ __getattribute__ __call__".split()
)


@register_builder_if(10, _is_size_or_namedtuple)
def _size_or_namedtuple(tx: Tracer, real: Any, source: Source) -> Variable:
    return TupleVariable(read_items(tx, real, source), type(real), source)


@register_sourceless_builder(tuple, torch.Size)
def _make_tuple(tx: Tracer, value: tuple[Any, ...]) -> Variable:
    return TupleVariable([tx.from_python(v) for v in value], type(value))


@register_sourceless_builder(list, collections.deque)
def _make_list(tx: Tracer, value: Any) -> Variable:
    return ListVariable([tx.from_python(v) for v in value], None, type(value), getattr(value, "maxlen", None))
