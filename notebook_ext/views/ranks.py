"""View of several ranks: groups, first divergences, and waits for the last rank."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from engine.records.ranks import RankArrivals, RankDivergence, RankGroups, divergence_title, format_ranks
from engine.records.session import Session
from notebook_ext.views import source_lines
from notebook_ext.views.format_text import format_seconds, one_line, pluralize, sanitize

MAX_BARS = 64
"""Maximum number of ranks that a section draws: the first and the last to arrive."""
MAX_ROWS = 100
"""Maximum number of rows of a section; the rest is counted."""


def ranks(session: Session) -> dict[str, Any]:
    """Return sections of rows: problems, divergences, groups, aspects, and arrivals."""
    found = session.ranks
    if found is None:
        return {"outcome": "One process was recorded.", "sections": []}
    missing = (f"No recording of {format_ranks(found.missing)}",) if found.missing else ()
    sections = [
        ("Problems of the recordings", [_row("", sanitize(p).rstrip(".") + ".") for p in (*found.problems, *missing)]),
        ("First divergences", [_divergence(session, d) for d in found.divergences]),
        ("Groups of equal ranks", [_row(format_ranks(g.ranks), f"{pluralize(len(g.ranks), 'rank')}, read from {g.file}") for g in found.groups]),
        ("Groups by what differs", [_row(a.aspect, " | ".join(map(format_ranks, a.groups)) if len(a.groups) > 1 else "equal") for a in found.aspects]),
    ]  # fmt: skip
    shown = [{"title": title, "rows": _limited(rows), "open": True} for title, rows in sections if rows]
    return {"outcome": outcome(found), "sections": [*shown, *map(_arrivals(found), found.arrivals)]}


def outcome(found: RankGroups) -> str:
    """Return in one sentence how many ranks are equal."""
    count, equal = len(found.ranks), len(found.groups[0].ranks)
    if len(found.groups) == 1:
        return f"All {pluralize(count, 'rank')} compiled the same."
    return f"{pluralize(count, 'rank')} in {len(found.groups):,} groups: {equal:,} are equal, {count - equal:,} differ."


def _row(name: str, text: str, **more: Any) -> dict[str, Any]:
    return {"name": one_line(name, 200), "text": one_line(text, 1000), **more}


def _limited(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    left = len(rows) - MAX_ROWS
    return rows if left <= 0 else [*rows[:MAX_ROWS], _row("", f"… and {left:,} more")]


def _divergence(session: Session, found: RankDivergence) -> dict[str, Any]:
    place = source_lines.line_name(session, found.span)
    sides = f"{found.here or 'nothing'} instead of {found.there or 'nothing'}; " if found.here or found.there else ""
    code = sanitize(source_lines.source_line(session, found.span)).strip()
    title = divergence_title(found) + (f" ({place})" if place else "")
    return _row(title, f"{sides}in the whole run: {', '.join(found.aspects)}", code=code)


def _arrivals(found: RankGroups) -> Callable[[RankArrivals], dict[str, Any]]:
    """Return a function that makes the section of one program, with a bar for each rank."""

    def section(arrivals: RankArrivals) -> dict[str, Any]:
        known = sorted((t, r) for t, r in zip(arrivals.arrivals, found.ranks, strict=True) if t is not None)
        shown = known if len(known) <= MAX_BARS else [*known[: MAX_BARS // 2], *known[-MAX_BARS // 2 :]]
        at = f" at {', '.join(arrivals.collectives)}" if arrivals.collectives else ""
        waited = format_seconds(arrivals.waited)
        title = f"Compile id {arrivals.compilation}, {arrivals.what}: rank {arrivals.last} came last, others waited up to {waited}{at}"
        rows = [
            _row(
                f"rank {rank}",
                "last" if rank == arrivals.last else f"waits {format_seconds(arrivals.waited - after)}",
                share=after / arrivals.waited if arrivals.waited else 1,
            )
            for after, rank in sorted(shown, key=lambda s: s[1])
        ]
        left = len(known) - len(shown)
        return {
            "title": one_line(title, 300),
            "rows": [*rows, *([_row("", f"{left:,} ranks between these are not drawn.")] if left else [])],
            "open": len(rows) <= 8,
        }

    return section
