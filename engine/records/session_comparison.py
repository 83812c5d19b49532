"""Records of the comparison of two sessions."""

from __future__ import annotations

from dataclasses import dataclass

from engine.records.base import Record


@dataclass(frozen=True, slots=True)
class AspectComparison(Record):
    """Comparison of one aspect of two sessions ("graphs", "breaks", ...).

    ``first`` and ``second`` are summaries. ``only_first`` and ``only_second`` are facts that only one session
    has.
    """

    aspect: str
    first: str
    second: str
    only_first: tuple[str, ...] = ()
    only_second: tuple[str, ...] = ()

    @property
    def is_same(self) -> bool:
        """True if the sides are equal; times count as equal unless they differ a lot."""
        return self.first == self.second and not self.only_first and not self.only_second


@dataclass(frozen=True, slots=True)
class FrameComparison(Record):
    """Comparison of one function: its compilations in both sessions.

    A function that only one session has has no compilations in the other.
    """

    name: str
    file_name: str
    first: tuple[str, ...]
    second: tuple[str, ...]
    aspects: tuple[AspectComparison, ...] = ()


@dataclass(frozen=True, slots=True)
class SessionComparison(Record):
    """Comparison of two sessions: totals, and each function in the order of the first session."""

    totals: tuple[AspectComparison, ...]
    frames: tuple[FrameComparison, ...]

    @property
    def is_same(self) -> bool:
        """True if the same functions have equal compilations, times aside."""
        return all(
            f.first and f.second and all(c.is_same for c in f.aspects if c.aspect != "time") for f in self.frames
        )  # fmt: skip
