"""Iterators that exist before the call.

Tracing reads and guards the state of builtin iterator types. Other iterators are opaque: Python runs their steps.
"""

from __future__ import annotations

import itertools
from types import GeneratorType
from typing import Any

from engine.frame_code.codegen_runtime.iterators import advance_iterator
from engine.ir.guards.python_values import EqualsMatch, LengthMatch
from engine.ir.sources.attributes import AttrSource
from engine.ir.sources.base import Source
from engine.ir.sources.containers import GetItemSource
from engine.ir.sources.iterators import (
    CountStateSource,
    IteratorHasItemSource,
    IteratorItemSource,
    count_state,
    iterator_state_source,
    position_sources,
    positions_in,
)
from engine.options import config
from engine.trace.annotations import PyCodegen, Tracer
from engine.trace.exc import Unsupported
from engine.trace.operators.arithmetic import binary_op
from engine.trace.symbols.value_names import name_value
from engine.trace.variables.base import ConstantVariable, Kwargs, RealObjectVariable, Variable, realize
from engine.trace.variables.builder import register_builder, register_builder_if
from engine.trace.variables.callables.generators_across_breaks import build_suspended_generator
from engine.trace.variables.containers.iterators import (
    IteratorVariable,
    RangeIteratorVariable,
    SequenceIteratorVariable,
)
from engine.trace.variables.containers.itertools_module import make_iterator
from engine.trace.variables.containers.ranges_and_slices import RangeVariable
from engine.trace.variables.containers.sequences import TupleVariable
from engine.trace.variables.slotted_type import state

_SEQUENCE_ITERATOR_TYPES: tuple[type, ...] = (type(iter([])), type(iter(())))
_RANGE_ITERATOR_TYPE = type(iter(range(0)))
_ITEM_GUARDED_TYPES = (list, tuple, range)


class ExternalIteratorVariable(IteratorVariable):
    """A real iterator with guarded state.

    ``inner`` yields the items while tracing; the real iterator advances after the graph. ``steps_taken`` counts those
    steps. A step of an outer iterator also advances its ``inner_iterators``, so their own steps are not counted.
    """

    real_object: Any
    source: Source
    inner: Any
    inner_iterators: tuple[ExternalIteratorVariable, ...] = ()
    steps_taken: int = state(0)

    def python_type(self) -> type:
        return type(self.real_object)

    @property
    def position_varies(self) -> bool:  # type: ignore[override]
        return self.inner.position_varies or any(i.position_varies for i in self.inner_iterators)

    def position_sources(self, source: Source) -> tuple[Source, ...]:
        return positions_in(self.real_object, source)

    @property
    def known_items_left(self) -> int:
        count: int = self.inner.known_items_left
        return count

    def all_inner_iterators(self) -> list[ExternalIteratorVariable]:
        """Return the inner iterators, at any depth, that a step may also advance."""
        return [iterator for b in self.inner_iterators for iterator in (b, *b.all_inner_iterators())]

    def next_item(self, tx: Tracer) -> Variable | None:
        tx.side_effects.record_mutation(self)
        others = self.all_inner_iterators()
        counts = [o.steps_taken for o in others]
        item: Variable | None = self.inner.next_item(tx)
        for other, count in zip(others, counts, strict=True):
            other.steps_taken = count
        self.steps_taken += 1
        return item

    def length_hint(self, tx: Tracer) -> int:
        length: int = self.inner.length_hint(tx)
        return length

    def iterated_lists(self) -> list[Variable]:
        """Return the lists that this iterator and its inner iterators read from."""
        return [s for k in (self, *self.all_inner_iterators()) if (s := getattr(k.inner, "iterable", None)) is not None]

    def reads_mutated_list(self, tx: Tracer) -> bool:
        """Return True if traced code mutated a list that this or an inner iterator reads from."""
        inner = [k.inner for k in (self, *self.all_inner_iterators())]
        lists = [s for s in self.iterated_lists() if s.is_mutable] + [k.underlying_list(tx) for k in inner]
        return any(id(v) in tx.side_effects.mutated_variables for v in lists)

    def describe_mutation(self) -> str:
        return f"the iterator is advanced by {self.steps_taken}" if self.steps_taken else ""

    def fill(self, cg: PyCodegen) -> None:
        """Emit code that advances the real iterator on the stack.

        Raises:
            Unsupported: traced code also mutated a list that it reads from, so the order of both effects would matter.
        """
        if self.reads_mutated_list(cg.tx):
            raise Unsupported(
                "mutated-while-iterating", "a list is mutated while an iterator created outside the function reads it"
            )
        cg.pop_into_call(advance_iterator, self.steps_taken)


class ItemGuardedIteratorVariable(IteratorVariable):
    """An iterator whose position differs between calls.

    The guards cover each item that is read, not the position.
    """

    real_object: Any
    iterator_source: Source
    position: int = state(0)
    is_exhausted: bool = state(False)

    position_varies = True

    def python_type(self) -> type:
        return type(self.real_object)

    def underlying_list(self, tx: Tracer) -> Variable | None:
        """Return the variable of the underlying list if tracing already knows that list."""
        real_list = self.real_object.__reduce__()[1][0]
        iterated = tx.objects.variables_by_id.get(id(real_list))
        return None if iterated is None or iterated[1] is not real_list or self.is_exhausted else iterated[0].resolved

    def next_item(self, tx: Tracer) -> Variable | None:
        iterated_list = self.underlying_list(tx)
        if iterated_list is not None and id(iterated_list) in tx.side_effects.mutated_variables:
            return self._next_of_mutated(tx, iterated_list.iterated_items(tx))
        has_more = IteratorHasItemSource(self.iterator_source, self.position)
        is_more = has_more.read(self.real_object)
        tx.guard(EqualsMatch, has_more, is_more, why="it is iterated")
        if not is_more:
            self.is_exhausted = True  # for good, even if items are appended later
            return None
        item = IteratorItemSource(self.iterator_source, self.position)
        self.position += 1
        if type(self.real_object) is _RANGE_ITERATOR_TYPE:
            tx.symbols.known_dynamic_sources.add(item)
        return tx.make_lazy(item.read(self.real_object), item)

    def _next_of_mutated(self, tx: Tracer, items: list[Variable]) -> Variable | None:
        """Return the next item of a list that changed while tracing; a guard covers the position."""
        first = self.real_object.__reduce__()[2]
        tx.guard(EqualsMatch, position_sources(self.iterator_source)[0], first, why="the list that it reads is mutated")
        index = first + self.position
        self.position += 1
        self.is_exhausted = index >= len(items)
        return None if self.is_exhausted else items[index]


class _SymbolicCountVariable(IteratorVariable):
    """A count, or an enumerate of ``inner``, where the first number may be a symbol."""

    start: Variable
    step: Any
    inner: Variable | None = None
    yielded_count: int = state(0)

    def python_type(self) -> type:
        return itertools.count if self.inner is None else enumerate

    def next_item(self, tx: Tracer) -> Variable | None:
        item = None if self.inner is None else self.inner.next_item(tx)
        if item is None and self.inner is not None:
            return None
        number = binary_op(tx, "+", self.start, ConstantVariable(self.yielded_count * self.step))
        self.yielded_count += 1
        return number if item is None else TupleVariable([number, item])


class OpaqueIteratorVariable(RealObjectVariable, IteratorVariable):
    """A real iterator whose items are known only at run time; each step is a graph break."""

    @property
    def holds_suspended_generator(self) -> bool:
        return type(self.real_object) is GeneratorType

    def next_item(self, tx: Tracer) -> Variable | None:
        what = f"next() on {name_value(tx, self)}, which was created outside the graph"
        raise Unsupported("outside-iterator", what)


def _is_iterator(real: Any) -> bool:
    cls = type(real)
    return hasattr(cls, "__next__") and not hasattr(cls, "forward") and cls.__module__ in ("builtins", "itertools")


@register_builder_if(20, _is_iterator, why="it is iterated")
def _iterator(tx: Tracer, real: Any, source: Source) -> Variable:
    if type(real) is GeneratorType:
        return build_suspended_generator(tx, real, source) or OpaqueIteratorVariable(real, source)
    # A loop with a graph break in each iteration needs a cache entry per item, unless the items are symbols. From half
    # the recompile limit on, the iterator is opaque, so that one entry fits all iterations.
    has_few_entries = tx.request.entry_index < config.recompile_limit // 2
    if _has_readable_state(real) and (has_few_entries or type(real) is _RANGE_ITERATOR_TYPE):
        return _build_from_state(tx, real, source)
    return OpaqueIteratorVariable(real, source)


def _has_readable_state(real: Any) -> bool:
    if type(real) is enumerate:
        return _has_readable_state(real.__reduce__()[1][0])
    if type(real) is zip:
        return all(map(_has_readable_state, real.__reduce__()[1]))
    return type(real) is _RANGE_ITERATOR_TYPE or type(real) in _SEQUENCE_ITERATOR_TYPES


def _build_from_state(tx: Tracer, real: Any, source: Source) -> Variable:
    state = real.__reduce__()
    state_source = iterator_state_source(source)
    tx.guard(LengthMatch, state_source, len(state), why="it is iterated")
    arguments = GetItemSource(state_source, 1)
    if type(real) is enumerate:
        iterators = _build_inner_iterators(tx, state[1][:1], arguments)
        number = GetItemSource(arguments, 1)
        if iterators[0].position_varies:
            tx.symbols.known_dynamic_sources.add(number)
            counted: Variable = _SymbolicCountVariable(tx.wrap(state[1][1], number), 1, iterators[0])
            return ExternalIteratorVariable(real, source, counted, iterators)
        tx.guard(EqualsMatch, number, state[1][1], why="it counts the items")
        counted = make_iterator(tx, enumerate, [*iterators, ConstantVariable(state[1][1])], {})
        return ExternalIteratorVariable(real, source, counted, iterators)
    if type(real) is zip:
        tx.guard(LengthMatch, arguments, len(state[1]), why="it is iterated")
        iterators = _build_inner_iterators(tx, state[1], arguments)
        strict: Kwargs = {"strict": ConstantVariable(True)} if len(state) > 2 else {}
        return ExternalIteratorVariable(real, source, make_iterator(tx, zip, list(iterators), strict), iterators)
    if type(state[1][0]) in _ITEM_GUARDED_TYPES and _position_varies(tx, source):
        return ExternalIteratorVariable(real, source, ItemGuardedIteratorVariable(real, source))
    if len(state) == 3:
        why = "the position of the iterator decides which items follow"
        tx.guard(EqualsMatch, GetItemSource(state_source, 2), state[2], why=why)
    inner = (_build_range_iterator if type(real) is _RANGE_ITERATOR_TYPE else _build_sequence_iterator)(
        tx, state, GetItemSource(arguments, 0)
    )
    return ExternalIteratorVariable(real, source, inner)


@register_builder(itertools.count, why="it is iterated")
def _build_count(tx: Tracer, real: Any, source: Source) -> Variable:
    """Build a count, whose next number becomes a symbol when it differs between calls."""
    state = count_state(real)
    if state is None or tx.request.entry_index >= config.recompile_limit // 2:
        return OpaqueIteratorVariable(real, source)
    first, step = state
    numbers = CountStateSource(source)
    tx.guard(EqualsMatch, GetItemSource(numbers, 1), step, why="it is iterated")
    start = tx.wrap(first, GetItemSource(numbers, 0))
    return ExternalIteratorVariable(real, source, _SymbolicCountVariable(start, step))


def _position_varies(tx: Tracer, source: Source) -> bool:
    """Return True if earlier compilations saw another position, or another end of a range."""
    end = AttrSource(GetItemSource(GetItemSource(iterator_state_source(source), 1), 0), "stop")
    return any(-1 in tx.request.dynamic_dims.get(link.expr, ()) for link in (*position_sources(source), end))


def _build_inner_iterators(
    tx: Tracer, iterators: tuple[Any, ...], source: Source
) -> tuple[ExternalIteratorVariable, ...]:
    values = (realize(tx, tx.wrap(real, GetItemSource(source, n))) for n, real in enumerate(iterators))
    return tuple(v for v in values if isinstance(v, ExternalIteratorVariable))


def _build_range_iterator(tx: Tracer, state: Any, source: Source) -> Variable:
    numbers = state[1][0]
    for name in ("start", "stop", "step"):
        tx.guard(EqualsMatch, AttrSource(source, name), getattr(numbers, name), why="it is iterated")
    return RangeIteratorVariable(RangeVariable.of(numbers), (state[2] if len(state) == 3 else None) or 0)


def _build_sequence_iterator(tx: Tracer, state: Any, source: Source) -> Variable:
    if len(state) == 2:
        return SequenceIteratorVariable([], type(iter(())))  # an exhausted iterator no longer references its sequence
    sequence = realize(tx, tx.wrap(state[1][0], source))
    contents = sequence.sequence_contents
    if contents is None or contents is not sequence:
        raise Unsupported("outside-iterator", f"an iterator over {sequence.typed_name} was created outside the graph")
    iterator = SequenceIteratorVariable(contents.items, type(iter(())), iterable=sequence)
    iterator.position = state[2]
    return iterator
