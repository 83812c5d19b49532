"""Sources that read the next item of an iterator."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from engine.ir.sources.base import MISSING, ConstName, Source


@dataclass(frozen=True)
class IteratorStateSource(Source):
    """What one of Python's own iterators would be pickled as: how it is made, of what, and how far it is. Reading it moves nothing on."""

    base: Source

    @property
    def expr(self) -> str:
        return f"{self.base.expr}.__reduce__()"

    def code(self, base: str, const: ConstName) -> str:
        return f"{base}.__reduce__()"

    def read(self, base: Any) -> Any:
        return base.__reduce__()


def iterator_item_or_missing(iterator: Any, index: int) -> Any:
    """The ``index``-th item that an iterator over a list, tuple or range is still to give, ``MISSING`` past its end. Moves nothing on."""
    state = iterator.__reduce__()
    over, position = state[1][0], state[2] if len(state) == 3 and state[2] is not None else 0
    at = position + index
    return over[at] if len(state) == 3 and 0 <= at < len(over) else MISSING


@dataclass(frozen=True)
class IteratorItemSource(Source):
    """The ``index``-th item that an iterator over a list, tuple or range is still to give, or ``MISSING``: wherever that iterator stands."""

    base: Source
    index: int

    @property
    def expr(self) -> str:
        return f"{self.base.expr}.__next__({f'+{self.index}' if self.index else ''})"

    def code(self, base: str, const: ConstName) -> str:
        return f"{const(iterator_item_or_missing, 'upcoming')}({base}, {self.index})"

    def read(self, base: Any) -> Any:
        return iterator_item_or_missing(base, self.index)


@dataclass(frozen=True)
class IteratorHasItemSource(Source):
    """Whether an iterator over a list, tuple or range is to give more than ``index`` items."""

    base: Source
    index: int

    @property
    def expr(self) -> str:
        return f"{self.base.expr}.__length_hint__() > {self.index}"

    def code(self, base: str, const: ConstName) -> str:
        return f"({base}.__length_hint__() > {self.index})"

    def read(self, base: Any) -> Any:
        return base.__length_hint__() > self.index
