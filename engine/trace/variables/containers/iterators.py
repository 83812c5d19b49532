"""Iterators over sequences, dicts, sets and ranges."""

from __future__ import annotations

import collections
from collections.abc import Callable
from dataclasses import field
from typing import Any

from engine.frame_code.codegen_runtime.iterators import make_advanced_iterator, make_reversed, skip_items
from engine.ir.sources.base import Source
from engine.ir.sources.iterators import position_sources
from engine.trace.annotations import DictVariable, PyCodegen, RangeVariable, Tracer
from engine.trace.exc import Unsupported, UserException
from engine.trace.operators.arithmetic import identical_or_equal
from engine.trace.variables.base import Args, ConstantVariable, Kwargs, Variable, realize
from engine.trace.variables.builder import register_sourceless_builder
from engine.trace.variables.callables.methods import builtin_attribute
from engine.trace.variables.slotted_type import state

_REVERSIBLE_TYPES = (str, bytes, list, tuple, collections.deque)
"""Builtin types whose reversed iterator is rebuilt after the graph."""


class IteratorVariable(Variable):
    """Base class of iterators: ``next_item`` advances and returns an item, None at the end."""

    is_mutable = True
    position_varies = False
    """True if the position differs between calls, so that no guard covers it."""

    def get_iterator(self, tx: Tracer) -> Variable:
        return self

    def contains(self, tx: Tracer, item: Variable) -> bool:
        while (candidate := self.next_item(tx)) is not None:
            if identical_or_equal(tx, realize(tx, candidate), item):
                return True
        return False

    def get_attr(self, tx: Tracer, name: str) -> Variable:
        if self.lacks_methods(name):
            return super().get_attr(tx, name)
        return builtin_attribute(tx, self, name)

    def call_method(self, tx: Tracer, name: str, args: Args, kwargs: Kwargs) -> Variable:
        if name == "__next__":
            item = self.next_item(tx)
            return self.raise_stop_iteration(tx) if item is None else item
        if name == "__iter__":
            return self
        if name == "__length_hint__":
            return ConstantVariable(self.length_hint(tx))
        raise self.unsupported_method(name)

    def length_hint(self, tx: Tracer) -> int:
        """Return the number of remaining items, for ``operator.length_hint``."""
        raise self.unsupported("operator.length_hint()")

    def underlying_list(self, tx: Tracer) -> Variable | None:
        """Return the list that the iterator reads item by item if tracing knows that list."""
        return None

    def raise_stop_iteration(self, tx: Tracer) -> Variable:
        """Raise the StopIteration that ``next`` raises at the end."""
        raise tx.make_stop_iteration()


class SequenceIteratorVariable(IteratorVariable):
    """An iterator over ``items``, a list that may still change.

    ``iterable`` is the iterated object if reconstruction needs it, otherwise None.
    """

    items: list[Variable]
    cls: type
    iterable: Variable | None = field(default=None, kw_only=True)
    position: int = state(0)

    def next_item(self, tx: Tracer) -> Variable | None:
        if self.position >= len(self.items):
            if self.iterable is not None:
                tx.side_effects.record_mutation(self)
                # exhausted for good, even if items are appended later
                self.items, self.iterable, self.position = [], None, 0
            return None
        tx.side_effects.record_mutation(self)
        self.position += 1
        return self.items[self.position - 1]

    @property
    def known_items_left(self) -> int:
        return max(0, len(self.items) - self.position)

    def length_hint(self, tx: Tracer) -> int:
        return self.known_items_left

    def child_variables(self) -> list[Variable]:
        iterated = self.list_it_reads()
        return self.items[self.position :] if iterated is None else [iterated]

    def position_sources(self, source: Source) -> tuple[Source, ...]:
        return position_sources(source)

    def list_it_reads(self) -> Variable | None:
        """Return the list that it reads, which may still change; None if it reads nothing mutable."""
        return self.iterable if self.iterable is not None and self.iterable.is_mutable else None

    def reconstruct(self, cg: PyCodegen) -> None:
        if (iterated := self.list_it_reads()) is not None:
            cg.call(make_advanced_iterator, iterated, self.position)
            return
        cg.build("BUILD_TUPLE", self.items[self.position :])
        cg.body.emit("GET_ITER")


def item_or_end(tx: Tracer, of: Variable, index: int) -> Variable | None:
    """Return an item of a sequence; None on IndexError or StopIteration."""
    try:
        return of.get_item(tx, ConstantVariable(index))
    except UserException as error:
        if issubclass(error.exception.python_type(), (IndexError, StopIteration)):
            return None
        raise


class ReversedIteratorVariable(IteratorVariable):
    """``reversed`` of ``sequence``: reads its items lazily, from ``index`` down."""

    cls: type
    sequence: Variable
    index: int

    def next_item(self, tx: Tracer) -> Variable | None:
        if self.index < 0:
            return None
        tx.side_effects.record_mutation(self)
        item = item_or_end(tx, self.sequence, self.index)
        self.index = -1 if item is None else self.index - 1
        return item

    def length_hint(self, tx: Tracer) -> int:
        return self.index + 1 if self.index < self.sequence.length(tx).as_python_constant(tx) else 0

    child_fields = ("sequence",)

    def reconstruct(self, cg: PyCodegen) -> None:
        if self.sequence.is_user_object or not issubclass(self.sequence.python_type(), _REVERSIBLE_TYPES):
            raise Unsupported("iterator-state", "continuing reversed() of a user-defined object after the graph")
        cg.call(make_reversed, self.sequence, self.index)


class DictOrSetIteratorVariable(SequenceIteratorVariable):
    """An iterator over a dict, a dict view or a set.

    It reads each entry only when it reaches it, and raises RuntimeError if the size changes.
    """

    keys: list[Any]
    read_entry: Callable[[Any], Variable | None]
    current_keys: Callable[[], list[Any]]
    container_name: str
    container: Variable
    dict_variable: DictVariable | None = None
    seen_mutation_count: int = state(0)
    expected_length: int = state(0)

    def __post_init__(self) -> None:
        self.seen_mutation_count = 0 if self.dict_variable is None else self.dict_variable.mutation_count
        self.expected_length = len(self.keys)

    def next_item(self, tx: Tracer) -> Variable | None:
        if self.position >= len(self.keys) and self.position == self.expected_length == 0:
            return None
        if self.dict_variable is not None and self.dict_variable.mutation_count != self.seen_mutation_count:
            self._check_change(self.dict_variable)
        if len(self.current_keys()) != self.expected_length:
            tx.side_effects.record_mutation(self)
            self.expected_length = -1  # later steps raise again
            tx.raise_error(RuntimeError, f"{self.container_name} changed size during iteration")
        if self.position >= len(self.keys):
            tx.side_effects.record_mutation(self)
            self.keys, self.position, self.expected_length, self.dict_variable = [], 0, 0, None
            return None
        item = self.read_entry(self.keys[self.position])
        if item is None:
            raise Unsupported("mutated-while-iterating", f"the keys of a {self.container_name} change during iteration")
        tx.side_effects.record_mutation(self)
        self.position += 1
        return item

    def _check_change(self, of: DictVariable) -> None:
        """Check that a changed dict has another size, which raises an error in the traced code.

        Raises:
            Unsupported: it has as many keys as before, or is an OrderedDict.
        """
        if self.container_name == "OrderedDict" or len(of.entries) == self.expected_length:
            raise Unsupported("mutated-while-iterating", f"the keys of a {self.container_name} change during iteration")

    def position_sources(self, source: Source) -> tuple[Source, ...]:
        return ()

    def remaining_items(self) -> list[Variable]:
        """Return the remaining items.

        Raises:
            Unsupported: the container changed during iteration.
        """
        items = [self.read_entry(key) for key in self.keys[self.position :]]
        is_moved = self.dict_variable is not None and self.dict_variable.mutation_count != self.seen_mutation_count
        if is_moved or len(self.current_keys()) != self.expected_length or None in items:
            raise Unsupported(
                "mutated-while-iterating", f"continuing to iterate over a {self.container_name} that has changed"
            )
        return [item for item in items if item is not None]

    def length_hint(self, tx: Tracer) -> int:
        is_same = len(self.current_keys()) == self.expected_length
        return len(self.keys) - self.position if is_same else 0

    def _is_unchanged(self) -> bool:
        """Return True if the container is unchanged since iteration began.

        Then a new iterator, advanced by the same number of items, detects later changes in the same way.
        """
        return self.position < len(self.keys) == self.expected_length and self.current_keys() == self.keys

    def child_variables(self) -> list[Variable]:
        if self._is_unchanged():
            return [self.container]
        return [item for item in map(self.read_entry, self.keys[self.position :]) if item is not None]

    def reconstruct(self, cg: PyCodegen) -> None:
        of = getattr(self.container, "dict_variable", self.container)
        if self._is_unchanged() and not cg.is_cyclic(of) and id(of) not in cg.tx.side_effects.mutated_variables:
            cg.body.callable(lambda: cg.load_const(skip_items))
            cg.load(self.container)
            cg.body.emit("GET_ITER")
            cg.load_const(self.position)
            cg.body.call(2)
            return
        cg.build("BUILD_TUPLE", self.remaining_items() if self.keys else [])
        cg.body.emit("GET_ITER")


class RangeIteratorVariable(IteratorVariable):
    """An iterator over a range."""

    over: RangeVariable
    position: int = 0
    cls = type(iter(range(0)))

    @property
    def known_items_left(self) -> int:
        bounds = [bound.resolved for bound in self.over.bounds]
        if not all(bound.is_constant for bound in bounds):
            return 0
        return max(0, len(range(*(bound.constant for bound in bounds))) - self.position)

    def length_hint(self, tx: Tracer) -> int:
        return len(self.over.as_python_constant(tx)) - self.position

    def position_sources(self, source: Source) -> tuple[Source, ...]:
        return position_sources(source)

    def next_item(self, tx: Tracer) -> Variable | None:
        number = self.over.item_at(tx, self.position)
        if number is not None:
            tx.side_effects.record_mutation(self)
            self.position += 1
        return number

    child_fields = ("over",)

    def reconstruct(self, cg: PyCodegen) -> None:
        cg.call(make_advanced_iterator, self.over, self.position)


def iterator_of(tx: Tracer, value: Variable) -> Variable:
    """Return ``iter(value)``."""
    return realize(tx, realize(tx, value).get_iterator(tx))


_SAMPLE_ITERABLES: tuple[Any, ...] = ("", b"", (), [], {}, range(0), range(2**99), set())
_BUILTIN_ITERATOR_TYPES = frozenset(
    type(iterator)
    for over in _SAMPLE_ITERABLES
    for iterator in (iter(over), reversed(over if hasattr(over, "__reversed__") else ()))
)
"""Types of iterators over built-in containers, which are finite."""


@register_sourceless_builder(*_BUILTIN_ITERATOR_TYPES)
def _make_builtin_iterator(tx: Tracer, value: Any) -> Variable:
    return SequenceIteratorVariable([tx.from_python(item) for item in value], type(value))
