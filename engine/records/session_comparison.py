"""Records of two compared sessions: aspects, frames and kernels that differ."""

from __future__ import annotations

from engine.records.base import Record


class AspectComparison(Record):
    """Comparison of one aspect of two sessions ("graphs", "breaks", ...).

    ``first`` and ``second`` are summaries. ``only_first`` and ``only_second`` are facts that only one session
    has. ``is_figure``: shown, but no difference by itself, as times and another compiler's number of guards.
    """

    aspect: str
    first: str
    second: str
    only_first: tuple[str, ...] = ()
    only_second: tuple[str, ...] = ()
    is_figure: bool = False
    is_reordered: bool = False
    """Of graphs: the same operations in another order."""
    line: int = 0
    """Of graphs: the user's line of the first difference; 0 if unknown."""

    @property
    def is_same(self) -> bool:
        """True if the sides are equal; times count as equal unless they differ a lot."""
        return self.first == self.second and not self.only_first and not self.only_second


class KernelPair(Record):
    """Two kernels side by side, with the operators that each fuses; a missing one is empty."""

    first: str
    second: str
    first_operators: str
    second_operators: str

    @property
    def is_same(self) -> bool:
        """True if both kernels fuse the same operators."""
        return self.first_operators == self.second_operators


class FrameComparison(Record):
    """Comparison of one function: its compilations in both sessions.

    A function that only one session has has no compilations in the other. ``verdict``: "equal", "equal, reordered",
    "equal, fused otherwise", "different: text of kernels", "different (line 3)" or "different: guards", "only in the
    first" or "... second".
    """

    name: str
    file_name: str
    first: tuple[str, ...]
    second: tuple[str, ...]
    aspects: tuple[AspectComparison, ...] = ()
    kernels: tuple[KernelPair, ...] = ()
    verdict: str = ""

    @property
    def is_same(self) -> bool:
        """True if both sessions have the function, with equal compilations, figures aside."""
        return bool(self.first and self.second) and all(c.is_same or c.is_figure for c in self.aspects)


class SessionComparison(Record):
    """Comparison of two sessions: totals, and each function in the order of the first session."""

    totals: tuple[AspectComparison, ...]
    frames: tuple[FrameComparison, ...]

    @property
    def is_same(self) -> bool:
        """True if the same functions have equal compilations, figures aside."""
        return all(f.is_same for f in self.frames)
