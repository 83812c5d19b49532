"""What changed between two recordings of the same program."""

from __future__ import annotations

from dataclasses import dataclass

from engine.records.base import Record


@dataclass(frozen=True, slots=True)
class AspectComparison(Record):
    """One fact in both recordings, in short, and what only one of them has. ``what`` is a stage's word ("graphs", "breaks", ...)."""

    aspect: str
    first: str
    second: str
    only_first: tuple[str, ...] = ()
    only_second: tuple[str, ...] = ()

    @property
    def is_same(self) -> bool:
        """Whether nothing differs; times always differ, and count only when they are far apart."""
        return self.first == self.second and not self.only_first and not self.only_second


@dataclass(frozen=True, slots=True)
class FrameComparison(Record):
    """One function in both recordings: its compilations there and here. One that only one of them has lacks the other's."""

    name: str
    file_name: str
    first: tuple[str, ...]
    second: tuple[str, ...]
    aspects: tuple[AspectComparison, ...] = ()


@dataclass(frozen=True, slots=True)
class SessionComparison(Record):
    """Two recordings side by side: as a whole, and function by function in the order of the first."""

    totals: tuple[AspectComparison, ...]
    frames: tuple[FrameComparison, ...]

    @property
    def is_same(self) -> bool:
        """Whether the same functions were compiled into the same, whatever the time it took."""
        return all(
            f.first and f.second and all(c.is_same for c in f.aspects if c.aspect != "time") for f in self.frames
        )  # fmt: skip
