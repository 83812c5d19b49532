"""Iterators that exist when a call begins: those of Python's own kinds are known by their state, others only when they run."""

from __future__ import annotations

from types import GeneratorType
from typing import TYPE_CHECKING, Any

from engine.ir.guards.python_values import EqualsMatch, LengthMatch
from engine.ir.sources.attributes import AttrSource
from engine.ir.sources.base import Source
from engine.ir.sources.containers import GetItemSource
from engine.ir.sources.iterators import IteratorHasItemSource, IteratorItemSource, IteratorStateSource
from engine.options import config
from engine.trace.exc import Unsupported
from engine.trace.operators.arithmetic import binary_op
from engine.trace.variables.base import ConstantVariable, RealObjectVariable, Variable, realize
from engine.trace.variables.builder import register_builder_if
from engine.trace.variables.callables.suspended_generators import build_suspended_generator
from engine.trace.variables.containers.iterators import (
    CombinedIteratorVariable,
    IteratorVariable,
    RangeIteratorVariable,
    SequenceIteratorVariable,
    make_enumerate,
    make_zip,
)
from engine.trace.variables.containers.sequences import ListVariable, SequenceVariable, TupleVariable

if TYPE_CHECKING:
    from engine.trace.codegen import PyCodegen
    from engine.trace.tracer import Tracer

_SEQUENCE_ITERATOR_TYPES: tuple[type, ...] = (type(iter([])), type(iter(())))
_RANGE_ITERATOR_TYPE = type(iter(range(0)))


class ExternalIteratorVariable(IteratorVariable):
    """A real iterator whose state is guarded: ``inner`` gives its items while tracing, and the real one is moved on after the graph.

    ``steps`` counts what is to be done to the real one; a step of an outer iterator does those of ``beneath`` with it.
    """

    def __init__(
        self, real_object: Any, source: Source, inner: Variable, beneath: tuple[ExternalIteratorVariable, ...] = ()
    ) -> None:
        self.real_object = real_object
        self.source = source
        self.inner: Any = inner
        self.inner_iterators = beneath
        self.steps_taken = 0

    def python_type(self) -> type:
        return type(self.real_object)

    def all_inner_iterators(self) -> list[ExternalIteratorVariable]:
        """Iterators that a step may move on too, at any depth."""
        return [found for b in self.inner_iterators for found in (b, *b.all_inner_iterators())]

    def next_item(self, tx: Tracer) -> Variable | None:
        tx.record_mutation(self)
        others = self.all_inner_iterators()
        counts = [o.steps_taken for o in others]
        found: Variable | None = self.inner.next_item(tx)
        for other, count in zip(others, counts, strict=True):
            other.steps_taken = count
        self.steps_taken += 1
        return found

    def length_hint(self, tx: Tracer) -> int:
        found: int = self.inner.length_hint(tx)
        return found

    def iterated_lists(self) -> list[Variable]:
        """The lists that it and those beneath it read from."""
        return [s for k in (self, *self.all_inner_iterators()) if (s := getattr(k.inner, "iterable", None)) is not None]

    def reads_mutated_list(self, tx: Tracer) -> bool:
        """Whether a list that it or one beneath it reads from was changed by the traced code."""
        moving = (
            k.inner for k in (self, *self.all_inner_iterators()) if isinstance(k.inner, ItemGuardedIteratorVariable)
        )
        lists = [
            *(s for s in self.iterated_lists() if isinstance(s, ListVariable)),
            *(m.underlying_list(tx) for m in moving),
        ]
        return any(id(v) in tx.mutated_variables for v in lists)

    def fill(self, cg: PyCodegen) -> None:
        """Move on the real iterator, which is on the stack.

        Raises:
            Unsupported: a list that it reads from is changed as well: the order of the two would matter.
        """
        if self.reads_mutated_list(cg.tx):
            raise Unsupported("side-effect", "a list is changed while an iterator from outside goes through it")
        from engine.trace.codegen_runtime.iterators import advance_iterator

        cg.load_helper(advance_iterator, 1)
        cg.load_const(self.steps_taken)
        cg.body.call(2)
        cg.body.emit("POP_TOP")


class ItemGuardedIteratorVariable(IteratorVariable):
    """What ``held``, which stood elsewhere in an earlier call, gives next: only the items that are asked for are guarded, not where it stands."""

    def __init__(self, real_object: Any, origin: Source) -> None:
        self.real_object = real_object
        self.iterator_source = origin
        self.position = 0

    def python_type(self) -> type:
        return type(self.real_object)

    def underlying_list(self, tx: Tracer) -> Variable | None:
        """The list that it goes through, if the traced code knows that otherwise."""
        over = self.real_object.__reduce__()[1][0]
        known = tx.variables_by_id.get(id(over))
        return None if known is None or known[1] is not over else known[0]

    def next_item(self, tx: Tracer) -> Variable | None:
        over = self.underlying_list(tx)
        if over is not None and id(over) in tx.mutated_variables:
            raise Unsupported("outside-iterator", "a list is changed while an iterator from outside goes through it")
        has_more = IteratorHasItemSource(self.iterator_source, self.position)
        found = has_more.read(self.real_object)
        tx.add_guard(EqualsMatch(has_more, found, cause=tx.guard_cause("it is iterated")))
        if not found:
            return None
        item = IteratorItemSource(self.iterator_source, self.position)
        self.position += 1
        if type(self.real_object) is _RANGE_ITERATOR_TYPE:
            tx.known_dynamic_sources.add(item)
        return tx.make_lazy(item.read(self.real_object), item)


class OpaqueIteratorVariable(RealObjectVariable, IteratorVariable):
    """A real iterator whose items are known only when it runs: each step is left to Python."""

    def next_item(self, tx: Tracer) -> Variable | None:
        raise Unsupported(
            "outside-iterator",
            f"the next item of a {type(self.real_object).__name__} that came from outside is asked for",
        )


def _is_iterator(real: Any) -> bool:
    return (
        hasattr(type(real), "__next__")
        and not hasattr(type(real), "forward")
        and type(real).__module__ in ("builtins", "itertools")
    )


@register_builder_if(20, _is_iterator)
def _iterator(tx: Tracer, real: Any, origin: Source) -> Variable:
    tx.guard_type(real, origin, "it is iterated")
    if type(real) is GeneratorType:
        return build_suspended_generator(tx, real, origin) or OpaqueIteratorVariable(real, origin)
    # A loop of many rounds that breaks in each would take an entry for every round: at half the limit one for all rounds is made.
    if _has_readable_state(real) and tx.request.entry_index < config.recompile_limit // 2:
        return _build_from_state(tx, real, origin)
    return OpaqueIteratorVariable(real, origin)


def _has_readable_state(real: Any) -> bool:
    if type(real) is enumerate:
        return _has_readable_state(real.__reduce__()[1][0])
    if type(real) is zip:
        state = real.__reduce__()
        return len(state) == 2 and all(map(_has_readable_state, state[1]))
    return type(real) is _RANGE_ITERATOR_TYPE or type(real) in _SEQUENCE_ITERATOR_TYPES


def _build_from_state(tx: Tracer, real: Any, origin: Source) -> Variable:
    state = real.__reduce__()
    read = IteratorStateSource(origin)
    tx.add_guard(LengthMatch(read, len(state), cause=tx.guard_cause("it is iterated")))
    arguments = GetItemSource(read, 1)
    if type(real) is enumerate:
        beneath = _build_inner_iterators(tx, state[1][:1], arguments)
        number = GetItemSource(arguments, 1)
        if isinstance(beneath[0].inner, ItemGuardedIteratorVariable):
            tx.known_dynamic_sources.add(number)
            return ExternalIteratorVariable(
                real, origin, _enumerate_from(beneath[0], tx.wrap(state[1][1], number)), beneath
            )
        tx.add_guard(EqualsMatch(number, state[1][1], cause=tx.guard_cause("it numbers the items")))
        return ExternalIteratorVariable(real, origin, make_enumerate(tx, beneath[0], state[1][1]), beneath)
    if type(real) is zip:
        tx.add_guard(LengthMatch(arguments, len(state[1]), cause=tx.guard_cause("it is iterated")))
        beneath = _build_inner_iterators(tx, state[1], arguments)
        return ExternalIteratorVariable(real, origin, make_zip(tx, list(beneath), strict=False), beneath)
    if _position_varies(tx, read, GetItemSource(arguments, 0)) and type(real) in (
        _RANGE_ITERATOR_TYPE,
        *_SEQUENCE_ITERATOR_TYPES,
    ):
        return ExternalIteratorVariable(real, origin, ItemGuardedIteratorVariable(real, origin))
    if len(state) == 3:
        tx.add_guard(
            EqualsMatch(
                GetItemSource(read, 2),
                state[2],
                cause=tx.guard_cause("how far an iterator is decides which items come next"),
            )
        )
    inner = (_build_range_iterator if type(real) is _RANGE_ITERATOR_TYPE else _build_sequence_iterator)(
        tx, state, GetItemSource(arguments, 0)
    )
    return ExternalIteratorVariable(real, origin, inner)


def _enumerate_from(inner: ExternalIteratorVariable, start: Variable) -> CombinedIteratorVariable:
    """What ``enumerate`` gives of an iterator from a number on that may be a symbol."""
    taken = 0

    def advance(tx: Tracer) -> Variable | None:
        nonlocal taken
        item = inner.next_item(tx)
        if item is None:
            return None
        taken += 1
        return TupleVariable([binary_op(tx, "+", start, ConstantVariable(taken - 1)), item])

    return CombinedIteratorVariable(enumerate, [inner], advance)


def _position_varies(tx: Tracer, state: Source, over: Source) -> bool:
    """Whether an iterator stood elsewhere in the calls that the code was compiled for: from Python 3.12 on, one over a range tells that by its start."""
    return any(
        -1 in tx.request.dynamic_dims.get(o.expr, ()) for o in (GetItemSource(state, 2), AttrSource(over, "start"))
    )


def _build_inner_iterators(
    tx: Tracer, iterators: tuple[Any, ...], origin: Source
) -> tuple[ExternalIteratorVariable, ...]:
    values = (realize(tx, tx.wrap(real, GetItemSource(origin, n))) for n, real in enumerate(iterators))
    return tuple(v for v in values if isinstance(v, ExternalIteratorVariable))


def _build_range_iterator(tx: Tracer, state: Any, origin: Source) -> Variable:
    numbers = state[1][0]
    for name in ("start", "stop", "step"):
        tx.add_guard(
            EqualsMatch(AttrSource(origin, name), getattr(numbers, name), cause=tx.guard_cause("it is iterated"))
        )
    found = RangeIteratorVariable(numbers)
    found.position = (state[2] if len(state) == 3 else None) or 0
    return found


def _build_sequence_iterator(tx: Tracer, state: Any, origin: Source) -> Variable:
    if len(state) == 2:
        return SequenceIteratorVariable([], type(iter(())))  # at its end it holds nothing any more
    over = realize(tx, tx.wrap(state[1][0], origin))
    if not isinstance(over, SequenceVariable):
        raise Unsupported("outside-iterator", f"an iterator over a {over.python_type().__name__} came from outside")
    found = SequenceIteratorVariable(over.items, type(iter(())), source=over)
    found.position = state[2]
    return found
