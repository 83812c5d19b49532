"""Iterators: over sequences and ranges, and the builtin ones made of others."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from engine.trace.signals import Unsupported
from engine.trace.values.base import Const, Value, force
from engine.trace.values.sequences import SequenceValue, TupleValue

if TYPE_CHECKING:
    from engine.trace.codegen import Codegen
    from engine.trace.state import Tracer
    from engine.trace.values.mappings import DictValue


class IteratorValue(Value):
    """What iterators share: ``step`` moves them on and gives the next value, None at the end."""

    is_mutable = True

    def iterate(self, tx: Tracer) -> Value:
        return self

    def truth(self, tx: Tracer) -> bool:
        return True

    def key(self, tx: Tracer) -> Any:
        return self

    def contains(self, tx: Tracer, item: Value) -> bool:
        from engine.trace.operations import same_or_equal

        while (found := self.step(tx)) is not None:
            if same_or_equal(tx, force(tx, found), item):
                return True
        return False

    def get_attr(self, tx: Tracer, name: str) -> Value:
        from engine.trace.values.methods import MethodOf

        if self.lacks(name):
            return super().get_attr(tx, name)
        if not callable(getattr(self.type(), name, None)):
            raise self.refuse(f"reading the attribute {name!r}")
        return MethodOf(self, name)

    def call_method(self, tx: Tracer, name: str, args: list[Value], kwargs: dict[str, Value]) -> Value:
        if name == "__next__":
            found = self.step(tx)
            return self.stop(tx) if found is None else found
        if name == "__iter__":
            return self
        if name == "__length_hint__":
            return Const(self.hint(tx))
        raise self.refuse(f"the method {name!r}")

    def hint(self, tx: Tracer) -> int:
        """How many items are still to come, as ``operator.length_hint`` tells."""
        raise self.refuse("operator.length_hint()")

    def stop(self, tx: Tracer) -> Value:
        """Raise the StopIteration that ``next`` gives at the end."""
        raise tx.stop_iteration()


class SequenceIterator(IteratorValue):
    """Over ``items``, which may be a list that still changes. ``source`` is what was iterated, when rebuilding needs it."""

    def __init__(self, items: list[Value], cls: type, source: Value | None = None) -> None:
        self.items = items
        self.cls = cls
        self.source = source
        self.position = 0

    def type(self) -> type:
        return self.cls

    def step(self, tx: Tracer) -> Value | None:
        if self.position >= len(self.items):
            if self.source is not None:
                tx.mutating(self)
                self.items, self.source, self.position = [], None, 0  # it stays at its end, whatever is added later
            return None
        tx.mutating(self)
        self.position += 1
        return self.items[self.position - 1]

    def hint(self, tx: Tracer) -> int:
        return max(0, len(self.items) - self.position)

    def children(self) -> list[Value]:
        return [self.source] if self._has_source() else self.items[self.position :]  # type: ignore[list-item]

    def _has_source(self) -> bool:
        from engine.trace.values.sequences import ListValue

        return isinstance(self.source, ListValue)

    def reconstruct(self, cg: Codegen) -> None:
        from engine.trace.support import advanced

        if self._has_source() and self.source is not None:
            cg.helper(advanced, 0)
            cg.load(self.source)
            cg.const(self.position)
            cg.out.call(2)
            return
        rest = self.items[self.position :]
        cg.load_all(rest)
        cg.out.emit("BUILD_TUPLE", len(rest))
        cg.out.emit("GET_ITER")


class ReversedIterator(IteratorValue):
    """``reversed`` over ``source``: reads ``item(n)`` when it comes to it, from number ``index`` down."""

    def __init__(
        self, cls: type, source: Value, count: int, size: Callable[[Tracer], int], item: Callable[[int], Value | None]
    ) -> None:
        self.cls = cls
        self.source = source
        self.size = size
        self.item = item
        self.index = count - 1

    def type(self) -> type:
        return self.cls

    def step(self, tx: Tracer) -> Value | None:
        if self.index < 0:
            return None
        tx.mutating(self)
        found = self.item(self.index)
        self.index = -1 if found is None else self.index - 1
        return found

    def hint(self, tx: Tracer) -> int:
        return self.index + 1 if self.index < self.size(tx) else 0

    def children(self) -> list[Value]:
        return [self.source]

    def reconstruct(self, cg: Codegen) -> None:
        from engine.trace.support import reversed_from

        if not isinstance(self.source, (Const, SequenceValue)):
            raise Unsupported("side-effect", "continuing a reversed object of the user's own after the graph")
        cg.helper(reversed_from, 0)
        cg.load(self.source)
        cg.const(self.index)
        cg.out.call(2)


class KeyedIterator(SequenceIterator):
    """Over a dict, its view or a set: reads entries as they are when it comes to them, and notices when their number changes."""

    def __init__(
        self,
        keys: list[Any],
        cls: type,
        read: Callable[[Any], Value | None],
        now: Callable[[], list[Any]],
        what: str,
        over: Value,
        of: DictValue | None = None,
    ) -> None:
        super().__init__([], cls)
        self.of = of
        self.moves = 0 if of is None else of.moves
        self.left = len(keys)
        """How many items are still to come, as far as their number tells."""
        self.keys: list[Any] = keys
        self.read = read
        self.now = now
        self.over = over
        self.expected = len(keys)
        self.what = what

    def step(self, tx: Tracer) -> Value | None:
        if self.position >= len(self.keys) and self.position == self.expected == 0:
            return None
        if self.of is not None and self.of.moves != self.moves:
            return self._step_changed(tx, self.of)
        if len(self.now()) != self.expected:
            tx.mutating(self)
            self.expected = -1  # it goes on raising
            tx.raise_error(RuntimeError, f"{self.what} changed size during iteration")
        if self.position >= len(self.keys):
            self._end(tx)
            return None
        found = self.read(self.keys[self.position])
        if found is None:
            raise Unsupported("unsupported-operation", f"a {self.what} whose keys change while it is iterated")
        tx.mutating(self)
        self.position += 1
        self.left -= 1
        return found

    def _end(self, tx: Tracer) -> None:
        tx.mutating(self)
        self.keys, self.position, self.expected, self.of = [], 0, 0, None

    def _step_changed(self, tx: Tracer, of: DictValue) -> Value | None:
        """The next item of a dict of which keys have come, gone or moved."""
        tx.mutating(self)
        if self.what == "OrderedDict" and self.position >= len(self.keys):
            self._end(tx)
            return None
        if self.what == "OrderedDict" and of.entries:
            self.expected = -1
            tx.raise_error(RuntimeError, "OrderedDict mutated during iteration")
        if len(of.entries) != self.expected:
            self.expected = -1
            tx.raise_error(RuntimeError, f"{self.what} changed size during iteration")
        self._take_over(of)
        if self.position >= len(self.keys):
            self._end(tx)
            return None
        if self.left <= 0:
            tx.raise_error(RuntimeError, f"{self.what} keys changed during iteration")
        self.position += 1
        self.left -= 1
        return self.read(self.keys[self.position - 1])

    def _take_over(self, of: DictValue) -> None:
        """Go by the keys that the dict has now: those that were given already, then the others in the order of the dict."""
        given = self.keys[: self.position]
        later = {key for key, moved in of.placed if moved > self.moves}
        first = set(given) - later
        self.keys = given + [key for key in of.entries if key not in first]
        self.moves = of.moves

    def rest(self) -> list[Value]:
        """What is still to come."""
        found = [self.read(key) for key in self.keys[self.position :]]
        is_moved = self.of is not None and self.of.moves != self.moves
        if is_moved or len(self.now()) != self.expected or None in found:
            raise Unsupported("side-effect", f"continuing over a {self.what} that has changed")
        return [item for item in found if item is not None]

    def hint(self, tx: Tracer) -> int:
        return self.left if len(self.now()) == self.expected else 0

    def _goes_on(self) -> bool:
        """Whether nothing has changed below: a new iterator, as far on, then notices a later change as this one would."""
        return self.position < len(self.keys) == self.expected and self.now() == self.keys

    def children(self) -> list[Value]:
        if self._goes_on():
            return [self.over]
        return [item for item in map(self.read, self.keys[self.position :]) if item is not None]

    def reconstruct(self, cg: Codegen) -> None:
        from engine.trace.support import stepped

        of = getattr(self.over, "of", self.over)
        if self._goes_on() and not cg.is_reaching(of) and id(of) not in cg.tx.mutated:
            cg.helper(stepped, 0)
            cg.load(self.over)
            cg.out.emit("GET_ITER")
            cg.const(self.position)
            cg.out.call(2)
            return
        rest = self.rest() if self.keys else []
        cg.load_all(rest)
        cg.out.emit("BUILD_TUPLE", len(rest))
        cg.out.emit("GET_ITER")


class RangeIterator(IteratorValue):
    """Over a range."""

    def __init__(self, value: range) -> None:
        self.value = value
        self.position = 0

    def type(self) -> type:
        return type(iter(range(0)))

    def hint(self, tx: Tracer) -> int:
        return len(self.value) - self.position

    def step(self, tx: Tracer) -> Value | None:
        number = self.value.start + self.position * self.value.step
        if number not in self.value:
            return None
        tx.mutating(self)
        self.position += 1
        return Const(number)

    def reconstruct(self, cg: Codegen) -> None:
        from engine.trace.support import advanced

        cg.helper(advanced, 0)
        cg.out.callable(lambda: cg.const(range))
        for bound in (self.value.start, self.value.stop, self.value.step):
            cg.const(bound)
        cg.out.call(3)
        cg.const(self.position)
        cg.out.call(2)


class CountIterator(IteratorValue):
    """``itertools.count`` and the numbers of ``enumerate``."""

    def __init__(self, value: Any, increment: Any = 1) -> None:
        self.value = value
        self.increment = increment

    def type(self) -> type:
        import itertools

        return itertools.count

    def step(self, tx: Tracer) -> Value | None:
        tx.mutating(self)
        self.value += self.increment
        return tx.from_python(self.value - self.increment)

    def reconstruct(self, cg: Codegen) -> None:
        cg.out.callable(lambda: cg.const(self.type()))
        cg.const(self.value)
        cg.const(self.increment)
        cg.out.call(2)


class CombinedIterator(IteratorValue):
    """``enumerate``, ``zip``, ``map``, ``filter``: ``advance`` makes one item out of the iterators beneath."""

    def __init__(
        self,
        cls: type,
        arguments: list[Value],
        advance: Callable[[Tracer], Value | None],
        keywords: Callable[[], dict[str, Any]] = dict,
        lead: Value | None = None,
    ) -> None:
        self.cls = cls
        self.arguments = arguments
        self.advance = advance
        self.keywords = keywords
        self.lead = lead

    def type(self) -> type:
        return self.cls

    def step(self, tx: Tracer) -> Value | None:
        return self.advance(tx)

    def children(self) -> list[Value]:
        return [*([self.lead] if self.lead is not None else []), *self.arguments]

    def reconstruct(self, cg: Codegen) -> None:
        import functools

        keywords = self.keywords()
        made = functools.partial(self.cls, **keywords) if keywords else self.cls
        cg.out.callable(lambda: cg.const(made))
        cg.load_all(self.children())
        cg.out.call(len(self.children()))


def iterator_of(tx: Tracer, value: Value) -> Value:
    """``iter(value)``."""
    return force(tx, force(tx, value).iterate(tx))


def make_enumerate(tx: Tracer, over: Value, start: int) -> Value:
    """``enumerate(over, start)``."""
    inner = iterator_of(tx, over)
    count = CountIterator(start)

    def advance(tx: Tracer) -> Value | None:
        item = inner.step(tx)
        if item is None:
            return None
        number = count.step(tx)
        assert number is not None
        return TupleValue([number, item])

    return CombinedIterator(enumerate, [inner], advance, lambda: {"start": count.value})


def make_zip(tx: Tracer, over: list[Value], *, strict: bool) -> Value:
    """``zip(*over)``."""
    inner = [iterator_of(tx, o) for o in over]

    def advance(tx: Tracer) -> Value | None:
        items: list[Value] = []
        for n, iterator in enumerate(inner):
            item = iterator.step(tx)
            if item is None:
                if strict:
                    _uneven(tx, inner, n)
                return None
            items.append(item)
        return TupleValue(items) if items else None

    return CombinedIterator(zip, inner, advance, lambda: {"strict": True} if strict else {})


def _uneven(tx: Tracer, inner: list[Value], ended: int) -> None:
    """Raise as ``zip(strict=True)`` does when its iterator number ``ended`` is the first at its end."""
    if ended:
        others = "argument 1" if ended == 1 else f"arguments 1-{ended}"
        tx.raise_error(ValueError, f"zip() argument {ended + 1} is shorter than {others}")
    for n, iterator in enumerate(inner[1:], start=1):
        if iterator.step(tx) is not None:
            others = "argument 1" if n == 1 else f"arguments 1-{n}"
            tx.raise_error(ValueError, f"zip() argument {n + 1} is longer than {others}")


def make_map(tx: Tracer, function: Value, over: list[Value]) -> Value:
    """``map(function, *over)``."""
    inner = [iterator_of(tx, o) for o in over]

    def advance(tx: Tracer) -> Value | None:
        items: list[Value] = []
        for iterator in inner:
            item = iterator.step(tx)
            if item is None:
                return None
            items.append(item)
        return force(tx, function).call(tx, items, {})

    return CombinedIterator(map, inner, advance, lead=function)


def make_filter(tx: Tracer, function: Value, over: Value) -> Value:
    """``filter(function, over)``."""
    inner = iterator_of(tx, over)

    def advance(tx: Tracer) -> Value | None:
        while (item := inner.step(tx)) is not None:
            forced = force(tx, function)
            is_identity = isinstance(forced, Const) and forced.value is None
            if force(tx, item if is_identity else forced.call(tx, [item], {})).truth(tx):
                return item
        return None

    return CombinedIterator(filter, [inner], advance, lead=function)
