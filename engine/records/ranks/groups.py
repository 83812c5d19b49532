"""Records of several ranks of one program: groups of equals, and first divergences."""

from __future__ import annotations

from engine.records.base import Record
from engine.records.bytecode import Span

ASPECTS = (
    "collective order", "compile ids", "graph breaks", "failures", "tensor metadata", "graphs", "guards", "cache outcomes",
    "collective schedule", "kernels",
)  # fmt: skip
"""Aspects by which ranks are compared.

Of several that differ in one compilation, the first one names the divergence.
"""
AFTER_CACHES = ("collective schedule", "kernels")
"""Aspects that a compiler logs only where its caches miss."""
HARMLESS = ("guards", "cache outcomes", *AFTER_CACHES)
"""Aspects that may differ while all ranks run the same graphs.

For example, a guard on the rank's own number.
"""


class RankGroup(Record):
    """Ranks that are equal in all aspects, and the name of the one file that is read for them."""

    ranks: tuple[int, ...]
    file: str


class AspectGroups(Record):
    """Ranks grouped by one aspect alone, the largest group first."""

    aspect: str
    groups: tuple[tuple[int, ...], ...]


class RankDivergence(Record):
    """First difference of a group of ranks from the largest group, whose ranks are ``others``.

    ``compilation``: compile id from which on they differ. ``aspect``: what differs there; ``aspects``: all that
    differs in the whole recording. ``here`` and ``there``: what these ranks and the others have. ``span``: line of
    user code, if known.
    """

    ranks: tuple[int, ...]
    others: tuple[int, ...]
    compilation: str
    aspect: str
    aspects: tuple[str, ...]
    here: str = ""
    there: str = ""
    span: Span | None = None


class RankArrivals(Record):
    """Times at which each rank could run a program, in the order of ``RankGroups.ranks``.

    The others wait for the last rank at the program's first collective. ``what``: "forward" or "backward" of a
    compilation, or the number of a call. ``arrivals``: seconds after the first rank; None if unknown.
    """

    compilation: str
    what: str
    collectives: tuple[str, ...]
    last: int
    waited: float
    """Seconds that the first rank waited for the last one."""
    arrivals: tuple[float | None, ...] = ()


class RankGroups(Record):
    """Ranks of one program in groups of equals, the largest group first."""

    ranks: tuple[int, ...]
    groups: tuple[RankGroup, ...]
    aspects: tuple[AspectGroups, ...] = ()
    divergences: tuple[RankDivergence, ...] = ()
    arrivals: tuple[RankArrivals, ...] = ()
    missing: tuple[int, ...] = ()
    """Ranks of the program without a recording."""
    problems: tuple[str, ...] = ()
    """Sentences about logs that are cut, of another torch version, or of another run."""

    def __str__(self) -> str:
        names = [f"  {format_ranks(g.ranks)}: read from {g.file}" for g in self.groups]
        missing = [f"No recording of {format_ranks(self.missing)}."] if self.missing else []
        differences = [line for d in self.divergences for line in _divergence_lines(d)]
        equal = "all compiled the same" if len(self.groups) == 1 else f"{len(self.groups):,} groups of equals"
        title = f"{len(self.ranks):,} {'rank' if len(self.ranks) == 1 else 'ranks'}, {equal}"
        return "\n".join([title, *names, *differences, *missing, *(f"{p}." for p in self.problems)])


def format_ranks(ranks: tuple[int, ...]) -> str:
    """Return rank numbers as text, with ranges: ``ranks 0-3, 7``."""
    parts: list[list[int]] = []
    for rank in sorted(ranks):
        if parts and rank == parts[-1][-1] + 1:
            parts[-1] = [parts[-1][0], rank]
        else:
            parts.append([rank])
    return f"{'rank' if len(ranks) == 1 else 'ranks'} " + ", ".join("-".join(map(str, p)) for p in parts)


def divergence_title(divergence: RankDivergence) -> str:
    """Return a divergence as one sentence without a final period."""
    who = format_ranks(divergence.ranks)
    verb = "differs" if len(divergence.ranks) == 1 else "differ"
    return f"{who[:1].upper()}{who[1:]} {verb} from {_others(divergence)} from compile id {divergence.compilation} on: {divergence.aspect}"


def _others(divergence: RankDivergence) -> str:
    others = divergence.others
    return format_ranks(others) if len(others) == 1 else f"{len(others):,} others"


def divergence_sides(divergence: RankDivergence) -> str:
    """Return what each side has where they diverge; empty if that is not known."""
    if not (divergence.here or divergence.there):
        return ""
    here, there = divergence.here or "nothing", divergence.there or "nothing"
    return f"on {format_ranks(divergence.ranks)}: {here}; on {_others(divergence)}: {there}"


def _divergence_lines(divergence: RankDivergence) -> list[str]:
    """Return a divergence with its line of code, and what both sides have there."""
    span = divergence.span
    line = f" ({span.file}:{span.line})" if span else ""
    sides = divergence_sides(divergence)
    return [f"{divergence_title(divergence)}{line}", *([f"  {sides}"] if sides else [])]
