"""Sources that read the next item of an iterator."""

from __future__ import annotations

import re
from typing import Any, ClassVar

from engine.ir.sources.attributes import AttrSource, MethodResultSource
from engine.ir.sources.base import MISSING, ConstName, FunctionSource, Source
from engine.ir.sources.containers import GetItemSource

_POSITIONED: tuple[type, ...] = (type(iter([])), type(iter(())), type(iter(range(0))))


def iterator_state_source(iterator: Source) -> Source:
    """Return the source of an iterator's pickle state: constructor, arguments, position.

    Reading it does not advance the iterator.
    """
    return MethodResultSource(iterator, "__reduce__")


def position_sources(iterator: Source) -> tuple[Source, ...]:
    """Return the numbers that change when an iterator over a list, tuple or range advances.

    From Python 3.12 on, a range iterator stores its position in ``start``.
    """
    state = iterator_state_source(iterator)
    return GetItemSource(state, 2), AttrSource(GetItemSource(GetItemSource(state, 1), 0), "start")


def positions_in(iterator: Any, source: Source) -> tuple[Source, ...]:
    """Return the numbers that change when a real iterator advances, or those inside it."""
    kind = type(iterator)
    if kind in (enumerate, zip):
        parts, arguments = iterator.__reduce__()[1:2], GetItemSource(iterator_state_source(source), 1)
        inner = parts[0][:1] if kind is enumerate else parts[0] if parts else ()
        return tuple(p for n, part in enumerate(inner) for p in positions_in(part, GetItemSource(arguments, n)))
    return position_sources(source) if kind in _POSITIONED else ()


def iterator_item_or_missing(iterator: Any, index: int) -> Any:
    """Return item ``index`` ahead of an iterator over a list, tuple or range, or ``MISSING``.

    Does not advance the iterator.
    """
    state = iterator.__reduce__()
    over, position = state[1][0], state[2] if len(state) == 3 and state[2] is not None else 0
    at = position + index
    return over[at] if len(state) == 3 and 0 <= at < len(over) else MISSING


class IteratorItemSource(FunctionSource):
    """Item ``index`` ahead of an iterator over a list, tuple or range, or ``MISSING``.

    The index counts from the iterator's current position.
    """

    function = staticmethod(iterator_item_or_missing)
    index: int

    @property
    def expr(self) -> str:
        return f"{self.base.expr}.__next__({f'+{self.index}' if self.index else ''})"


class IteratorHasItemSource(Source):
    """True if an iterator over a list, tuple or range has more than ``index`` items left."""

    notation: ClassVar[str] = "{0.base.expr}.__length_hint__() > {0.index}"

    base: Source
    index: int

    def code(self, base: str, const: ConstName) -> str:
        return f"({base}.__length_hint__() > {self.index})"

    def read(self, base: Any) -> Any:
        return base.__length_hint__() > self.index


def count_state(iterator: Any) -> tuple[int, int] | None:
    """Return the next number and the step of an ``itertools.count`` of integers; else None.

    They are read from its ``repr``: Python 3.14 has no ``__reduce__`` of it.
    """
    numbers = re.fullmatch(r"count\((-?\d+)(?:, (-?\d+))?\)", repr(iterator))
    return None if numbers is None else (int(numbers[1]), int(numbers[2] or 1))


class CountStateSource(FunctionSource):
    """The next number and the step of an ``itertools.count``, read without advancing it."""

    notation: ClassVar[str] = "{0.base.expr}.__repr__()"
    function = staticmethod(count_state)
