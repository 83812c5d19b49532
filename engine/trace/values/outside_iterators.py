"""Iterators that exist when a call begins: those of Python's own kinds are known by their state, others only when they run."""

from __future__ import annotations

from types import GeneratorType
from typing import TYPE_CHECKING, Any

from engine.ir.origin import Attr, HasUpcoming, Item, IteratorState, Origin, Upcoming
from engine.ir.value_guard import Equals, LengthIs
from engine.options import config
from engine.trace.operations import binary
from engine.trace.signals import Unsupported
from engine.trace.values.base import Const, HeldValue, Value, force
from engine.trace.values.iterators import (
    CombinedIterator,
    IteratorValue,
    RangeIterator,
    SequenceIterator,
    make_enumerate,
    make_zip,
)
from engine.trace.values.sequences import ListValue, SequenceValue, TupleValue
from engine.trace.values.waiting_generators import waiting_generator
from engine.trace.values.wrap import wraps_if

if TYPE_CHECKING:
    from engine.trace.codegen import Codegen
    from engine.trace.state import Tracer

_OVER_SEQUENCES: tuple[type, ...] = (type(iter([])), type(iter(())))
_OVER_RANGES = type(iter(range(0)))


class KnownIterator(IteratorValue):
    """A real iterator whose state is guarded: ``inner`` gives its items while tracing, and the real one is moved on after the graph.

    ``steps`` counts what is to be done to the real one; a step of an outer iterator does those of ``beneath`` with it.
    """

    def __init__(self, held: Any, origin: Origin, inner: Value, beneath: tuple[KnownIterator, ...] = ()) -> None:
        self.held = held
        self.origin = origin
        self.inner: Any = inner
        self.beneath = beneath
        self.steps = 0

    def type(self) -> type:
        return type(self.held)

    def all_beneath(self) -> list[KnownIterator]:
        """Iterators that a step may move on too, at any depth."""
        return [found for b in self.beneath for found in (b, *b.all_beneath())]

    def step(self, tx: Tracer) -> Value | None:
        tx.mutating(self)
        others = self.all_beneath()
        counts = [o.steps for o in others]
        found: Value | None = self.inner.step(tx)
        for other, count in zip(others, counts, strict=True):
            other.steps = count
        self.steps += 1
        return found

    def hint(self, tx: Tracer) -> int:
        found: int = self.inner.hint(tx)
        return found

    def over(self) -> list[Value]:
        """The lists that it and those beneath it read from."""
        return [s for k in (self, *self.all_beneath()) if (s := getattr(k.inner, "source", None)) is not None]

    def reads_changed(self, tx: Tracer) -> bool:
        """Whether a list that it or one beneath it reads from was changed by the traced code."""
        moving = (k.inner for k in (self, *self.all_beneath()) if isinstance(k.inner, MovingIterator))
        lists = [*(s for s in self.over() if isinstance(s, ListValue)), *(m.known_list(tx) for m in moving)]
        return any(id(v) in tx.mutated for v in lists)

    def fill(self, cg: Codegen) -> None:
        """Move on the real iterator, which is on the stack.

        Raises:
            Unsupported: a list that it reads from is changed as well: the order of the two would matter.
        """
        if self.reads_changed(cg.tx):
            raise Unsupported("side-effect", "a list is changed while an iterator from outside goes through it")
        from engine.trace.support import moved_on

        cg.helper(moved_on, 1)
        cg.const(self.steps)
        cg.out.call(2)
        cg.out.emit("POP_TOP")


class MovingIterator(IteratorValue):
    """What ``held``, which stood elsewhere in an earlier call, gives next: only the items that are asked for are guarded, not where it stands."""

    def __init__(self, held: Any, origin: Origin) -> None:
        self.held = held
        self.over = origin
        self.position = 0

    def type(self) -> type:
        return type(self.held)

    def known_list(self, tx: Tracer) -> Value | None:
        """The list that it goes through, if the traced code knows that otherwise."""
        over = self.held.__reduce__()[1][0]
        known = tx.known.get(id(over))
        return None if known is None or known[1] is not over else known[0]

    def step(self, tx: Tracer) -> Value | None:
        over = self.known_list(tx)
        if over is not None and id(over) in tx.mutated:
            raise Unsupported("outside-iterator", "a list is changed while an iterator from outside goes through it")
        has_more = HasUpcoming(self.over, self.position)
        found = has_more.read(self.held)
        tx.guard(Equals(has_more, found, cause=tx.cause("it is iterated")))
        if not found:
            return None
        item = Upcoming(self.over, self.position)
        self.position += 1
        if type(self.held) is _OVER_RANGES:
            tx.changing.add(item)
        return tx.lazy(item.read(self.held), item)


class OpaqueIterator(HeldValue, IteratorValue):
    """A real iterator whose items are known only when it runs: each step is left to Python."""

    def step(self, tx: Tracer) -> Value | None:
        raise Unsupported(
            "outside-iterator", f"the next item of a {type(self.held).__name__} that came from outside is asked for"
        )


def _is_iterator(real: Any) -> bool:
    return (
        hasattr(type(real), "__next__")
        and not hasattr(type(real), "forward")
        and type(real).__module__ in ("builtins", "itertools")
    )


@wraps_if(20, _is_iterator)
def _iterator(tx: Tracer, real: Any, origin: Origin) -> Value:
    tx.guard_type(real, origin, "it is iterated")
    if type(real) is GeneratorType:
        return waiting_generator(tx, real, origin) or OpaqueIterator(real, origin)
    # A loop of many rounds that breaks in each would take an entry for every round: at half the limit one for all rounds is made.
    if _is_known(real) and tx.request.entry < config.recompile_limit // 2:
        return _known(tx, real, origin)
    return OpaqueIterator(real, origin)


def _is_known(real: Any) -> bool:
    if type(real) is enumerate:
        return _is_known(real.__reduce__()[1][0])
    if type(real) is zip:
        state = real.__reduce__()
        return len(state) == 2 and all(map(_is_known, state[1]))
    return type(real) is _OVER_RANGES or type(real) in _OVER_SEQUENCES


def _known(tx: Tracer, real: Any, origin: Origin) -> Value:
    state = real.__reduce__()
    read = IteratorState(origin)
    tx.guard(LengthIs(read, len(state), cause=tx.cause("it is iterated")))
    arguments = Item(read, 1)
    if type(real) is enumerate:
        beneath = _beneath(tx, state[1][:1], arguments)
        number = Item(arguments, 1)
        if isinstance(beneath[0].inner, MovingIterator):
            tx.changing.add(number)
            return KnownIterator(real, origin, _numbered(beneath[0], tx.wrap(state[1][1], number)), beneath)
        tx.guard(Equals(number, state[1][1], cause=tx.cause("it numbers the items")))
        return KnownIterator(real, origin, make_enumerate(tx, beneath[0], state[1][1]), beneath)
    if type(real) is zip:
        tx.guard(LengthIs(arguments, len(state[1]), cause=tx.cause("it is iterated")))
        beneath = _beneath(tx, state[1], arguments)
        return KnownIterator(real, origin, make_zip(tx, list(beneath), strict=False), beneath)
    if _has_moved(tx, read, Item(arguments, 0)) and type(real) in (_OVER_RANGES, *_OVER_SEQUENCES):
        return KnownIterator(real, origin, MovingIterator(real, origin))
    if len(state) == 3:
        tx.guard(
            Equals(Item(read, 2), state[2], cause=tx.cause("how far an iterator is decides which items come next"))
        )
    inner = (_over_range if type(real) is _OVER_RANGES else _over_sequence)(tx, state, Item(arguments, 0))
    return KnownIterator(real, origin, inner)


def _numbered(inner: KnownIterator, start: Value) -> CombinedIterator:
    """What ``enumerate`` gives of an iterator from a number on that may be a symbol."""
    taken = 0

    def advance(tx: Tracer) -> Value | None:
        nonlocal taken
        item = inner.step(tx)
        if item is None:
            return None
        taken += 1
        return TupleValue([binary(tx, "+", start, Const(taken - 1)), item])

    return CombinedIterator(enumerate, [inner], advance)


def _has_moved(tx: Tracer, state: Origin, over: Origin) -> bool:
    """Whether an iterator stood elsewhere in the calls that the code was compiled for: from Python 3.12 on, one over a range tells that by its start."""
    return any(-1 in tx.request.dynamic.get(o.expr, ()) for o in (Item(state, 2), Attr(over, "start")))


def _beneath(tx: Tracer, iterators: tuple[Any, ...], origin: Origin) -> tuple[KnownIterator, ...]:
    values = (force(tx, tx.wrap(real, Item(origin, n))) for n, real in enumerate(iterators))
    return tuple(v for v in values if isinstance(v, KnownIterator))


def _over_range(tx: Tracer, state: Any, origin: Origin) -> Value:
    numbers = state[1][0]
    for name in ("start", "stop", "step"):
        tx.guard(Equals(Attr(origin, name), getattr(numbers, name), cause=tx.cause("it is iterated")))
    found = RangeIterator(numbers)
    found.position = (state[2] if len(state) == 3 else None) or 0
    return found


def _over_sequence(tx: Tracer, state: Any, origin: Origin) -> Value:
    if len(state) == 2:
        return SequenceIterator([], type(iter(())))  # at its end it holds nothing any more
    over = force(tx, tx.wrap(state[1][0], origin))
    if not isinstance(over, SequenceValue):
        raise Unsupported("outside-iterator", f"an iterator over a {over.type().__name__} came from outside")
    found = SequenceIterator(over.items, type(iter(())), source=over)
    found.position = state[2]
    return found
