"""View of devices: the mesh, what ranks hold and send, first divergences, and waits."""

from __future__ import annotations

import base64
import math
from collections.abc import Callable, Mapping, Sequence
from html import escape
from typing import Any

from engine.records.format_amounts import format_bytes, format_seconds
from engine.records.graph import MeshRecord, NodeRecord
from engine.records.ranks.collectives import GraphCollective, recorded_collectives, recorded_mesh
from engine.records.ranks.groups import (
    RankArrivals,
    RankDivergence,
    RankGroups,
    divergence_sides,
    divergence_title,
    format_ranks,
)
from engine.records.session import Session
from notebook_ext.views import source_lines
from notebook_ext.views.format_text import one_line, pluralize, sanitize, tensor_type

CLASS_COLORS = ("#0b63a5", "#b04500", "#00705a", "#8f3f78", "#735700", "#4b5966")
"""Colors of classes of ranks; white text on them is readable."""
OUTLINE, PLATE, DIGITS = "#8a8a8a", "#eeeeee", "#4b4b4b"
"""Outline, background and digits of ranks without a class, readable in both themes."""
MAX_NUMBERED = 128
"""Ranks up to which each cell shows its number."""
MAX_CELLS = 4096
"""Ranks that are drawn; a caption counts the rest."""
MAX_COLUMNS = 32
"""Columns of a mesh with one dimension."""
MAX_BARS = 64
"""Maximum number of ranks that a section draws: the first and the last to arrive."""
MAX_NAMED_RANKS = 4
"""Maximum number of ranks that a sentence names one by one."""
MAX_ROWS = 100
"""Maximum number of rows of a section; the rest is counted."""


def devices(session: Session) -> dict[str, Any]:
    """Return sections of rows, of which the first has the picture of the mesh.

    Then follow what a rank holds, collectives, problems, divergences, groups, aspects, and arrivals.
    """
    rank_groups, mesh, calls = (
        session.ranks,
        recorded_mesh(session.compilations),
        recorded_collectives(session.compilations),
    )
    hidden = [c for c in calls if c.is_hidden]
    sections = [
        (
            "What this rank holds",
            [] if session.compiler == "torch" else _dtensor_rows(session),
        ),  # its graphs have no placements
        ("Hidden redistributions: DTensor inserts them, no line asks for them", _collective_rows(session, hidden)),
        ("Collectives that lines ask for", _collective_rows(session, [c for c in calls if not c.is_hidden])),
        *(_difference_sections(session, rank_groups) if rank_groups else ()),
    ]
    shown = [{"title": title, "rows": _limit_rows(rows), "open": True} for title, rows in sections if rows]
    said = [outcome(rank_groups)] if rank_groups else ["One process was recorded."] if mesh is None else []
    said += [f"{pluralize(len(calls), 'collective')} in the graphs, {len(hidden):,} hidden."] if calls else []
    eager = [c.aot.fallback.reason for c in session.compilations if c.aot and c.aot.fallback and recorded_mesh([c])]
    said += [f"Collectives of {pluralize(len(eager), 'graph')} are not known, because {eager[0]}."] if eager else []
    arrivals = map(_make_arrival_section(rank_groups), rank_groups.arrivals) if rank_groups else ()
    return {"outcome": " ".join(said), "sections": [*_mesh_sections(mesh, rank_groups), *shown, *arrivals]}


def _mesh_sections(mesh: MeshRecord | None, rank_groups: RankGroups | None) -> list[dict[str, Any]]:
    """Return the section with the picture: ranks with the color of their group."""
    if mesh is not None and (rank_groups is None or mesh.groups):
        names, sizes, ranks = mesh.names, mesh.sizes, mesh.ranks
    elif rank_groups is not None:
        ranks = tuple(sorted((*rank_groups.ranks, *rank_groups.missing)))
        names, sizes = ("world",), (len(ranks),)
    else:
        return []
    groups = [g.ranks for g in rank_groups.groups] if rank_groups else [(mesh.rank,)] if mesh else []
    rows = [
        _text_row(format_ranks(g).capitalize(), "recorded here" if rank_groups is None else "compiled the same" if len(g) > 1 else "differs" if i else "", color=class_color(i))
        for i, g in enumerate(groups)
    ]  # fmt: skip
    left = len(ranks) - sum(map(len, groups))
    rest = [_text_row("", f"{left:,} outlined: no recording.")] if left > 0 else []
    return [
        {
            "title": "Mesh",
            "image": mesh_image(sizes, ranks, {rank: i for i, g in enumerate(groups) for rank in g}),
            "rows": [_text_row("", mesh_caption(names, sizes, len(ranks))), *_limit_rows(rows), *rest],
            "open": True,
        }
    ]


def _dtensor_rows(session: Session) -> list[dict[str, Any]]:
    """Return a row for each DTensor that graphs read: placements and local bytes."""
    rows: dict[str, dict[str, Any]] = {}
    whole = local = 0
    for compilation in session.compilations:
        locals_ = {n.name: n for g in compilation.graphs for n in g.nodes if n.op == "placeholder"}
        for node in compilation.graphs[0].nodes if compilation.graphs else ():
            if node.op != "placeholder" or not node.placements or node.name in rows:
                continue
            own = locals_.get(f"{node.name}__local_tensor")
            here = (
                f"; {tensor_type(own.dtype, own.shape)} here, {format_bytes(own.bytes)} of {format_bytes(node.bytes)}"
                if own
                else ""
            )
            rows[node.name] = _text_row(node.name, f"{placed_type(node)}{here}")
            whole, local = whole + (node.bytes or 0), local + ((own.bytes or 0) if own else 0)
    total = [_text_row("In all", f"{format_bytes(local)} here of {format_bytes(whole)}")] if local else []
    return [*rows.values(), *total]


def placed_type(node: NodeRecord) -> str:
    """Return the type of a node with its placements: ``f32[32, 16] tp=4: S(0)``."""
    return " ".join(filter(None, (tensor_type(node.dtype, node.shape), ", ".join(node.placements))))


def _collective_rows(session: Session, calls: list[GraphCollective]) -> list[dict[str, Any]]:
    """Return a row for all equal collectives of a line, the largest first."""
    rows: dict[Any, list[GraphCollective]] = {}
    for c in calls:
        rows.setdefault((c.span, c.kind, c.bytes, c.group, c.stage, c.is_hidden), []).append(c)
    return [_collective_row(session, g[0], len(g)) for g in sorted(rows.values(), key=lambda g: -g[0].bytes * len(g))]


def _collective_row(session: Session, c: GraphCollective, count: int) -> dict[str, Any]:
    size = f" of {format_bytes(c.bytes)}" if c.bytes else ""
    group = f" over {c.group}" if c.group else ""
    line = source_lines.line_name(session, c.span)
    times = f"{count:,} x " if count > 1 else ""
    name = f"{times}{c.kind} {tensor_type(c.dtype, None)}{size}{group}{f' ({line})' if line else ''}"
    return _text_row(name, _cause_text(c), code=sanitize(source_lines.source_line(session, c.span)).strip())


def _cause_text(c: GraphCollective) -> str:
    is_backward = c.stage == "backward"
    if c.origin is None:
        return "Brings a gradient to the placement of its input." if is_backward else ""
    read = ", ".join(f"{n.name} {placed_type(n)}" for n in c.inputs)
    if not c.is_hidden:
        return f"{f'from {read} ' if read else ''}to {placed_type(c.origin)}{' (its gradient)' if is_backward else ''}"
    call = c.origin.text.partition(" = ")[2] or c.origin.text
    return (
        f"{'The gradient of ' if is_backward else ''}{call} cannot be computed on these placements: {read}. Choose placements that it keeps,"
        " or redistribute an input once, where it is small."
    )


def _difference_sections(session: Session, rank_groups: RankGroups) -> list[tuple[str, list[dict[str, Any]]]]:
    missing = (f"No recording of {format_ranks(rank_groups.missing)}",) if rank_groups.missing else ()
    return [
        ("Problems of the recordings", [_text_row("", sanitize(p).rstrip(".") + ".") for p in (*rank_groups.problems, *missing)]),
        ("First divergences", [_divergence_row(session, d) for d in rank_groups.divergences]),
        ("Groups of equal ranks", [_text_row(format_ranks(g.ranks), f"{pluralize(len(g.ranks), 'rank')}, read from {g.file}") for g in rank_groups.groups]),
        ("Groups by what differs", [_text_row(a.aspect, " | ".join(map(format_ranks, a.groups)) if len(a.groups) > 1 else "equal") for a in rank_groups.aspects]),
    ]  # fmt: skip


def outcome(rank_groups: RankGroups) -> str:
    """Return in one sentence how many ranks are equal."""
    count, (largest, *others) = len(rank_groups.ranks), rank_groups.groups
    if not others:
        return f"All {pluralize(count, 'rank')} compiled the same."
    differing = tuple([rank for group in others for rank in group.ranks])
    verb = "differs" if len(differing) == 1 else "differ"
    return f"{pluralize(count, 'rank')} in {len(others) + 1:,} groups: {_who(differing)} {verb} from {_who(largest.ranks)}."


def _who(ranks: tuple[int, ...]) -> str:
    """Return a few ranks by number, many as a count."""
    return format_ranks(ranks) if len(ranks) <= MAX_NAMED_RANKS else f"{len(ranks):,} ranks"


def _text_row(name: str, text: str, **more: Any) -> dict[str, Any]:
    return {"name": one_line(name, 200), "text": one_line(text, 1000), **more}


def _limit_rows(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    left = len(rows) - MAX_ROWS
    return rows if left <= 0 else [*rows[:MAX_ROWS], _text_row("", f"… and {left:,} more")]


def _divergence_row(session: Session, divergence: RankDivergence) -> dict[str, Any]:
    line = source_lines.line_name(session, divergence.span)
    code = sanitize(source_lines.source_line(session, divergence.span)).strip()
    title = divergence_title(divergence) + (f" ({line})" if line else "")
    return _text_row(
        title,
        "; ".join(filter(None, (divergence_sides(divergence), f"in the whole run: {', '.join(divergence.aspects)}"))),
        code=code,
    )


def _make_arrival_section(rank_groups: RankGroups) -> Callable[[RankArrivals], dict[str, Any]]:
    """Return a function that makes the section of one program, with a bar for each rank."""

    def section(arrivals: RankArrivals) -> dict[str, Any]:
        times_and_ranks = sorted(
            (t, r) for t, r in zip(arrivals.arrivals, rank_groups.ranks, strict=True) if t is not None
        )
        shown = (
            times_and_ranks
            if len(times_and_ranks) <= MAX_BARS
            else [*times_and_ranks[: MAX_BARS // 2], *times_and_ranks[-MAX_BARS // 2 :]]
        )
        at = f" at {', '.join(arrivals.collectives)}" if arrivals.collectives else ""
        waited = format_seconds(arrivals.waited)
        title = f"Compile id {arrivals.compilation}, {arrivals.what}: rank {arrivals.last} came last, others waited up to {waited}{at}"
        rows = [
            _text_row(
                f"rank {rank}",
                "last" if rank == arrivals.last else f"waits {format_seconds(arrivals.waited - after)}",
                share=after / arrivals.waited if arrivals.waited else 1,
            )
            for after, rank in sorted(shown, key=lambda s: s[1])
        ]
        left = len(times_and_ranks) - len(shown)
        return {
            "title": one_line(title, 300),
            "rows": [*rows, *([_text_row("", f"{left:,} ranks between these are not drawn.")] if left else [])],
            "open": len(rows) <= 8,
        }

    return section


def class_color(number: int) -> str:
    """Return the color of a class of ranks; colors repeat."""
    return CLASS_COLORS[number % len(CLASS_COLORS)]


def mesh_image(sizes: Sequence[int], ranks: Sequence[int], classes: Mapping[int, int]) -> str:
    """Return the mesh as a data URI; ``classes``: number of each rank's class.

    Columns are the last dimension. Ranks without a class are outlined.
    """
    columns = sizes[-1] if len(sizes) > 1 else min(len(ranks), MAX_COLUMNS)
    has_numbers = len(ranks) <= MAX_NUMBERED
    width, height = (34, 22) if has_numbers else (max(3, 900 // max(columns, 60)), 9)
    shown = ranks[:MAX_CELLS]
    cells = []
    for at, rank in enumerate(shown):
        x, y = at % columns * width, at // columns * height
        class_number = classes.get(rank)
        fill = (
            f'fill="{class_color(class_number)}"' if class_number is not None else f'fill="{PLATE}" stroke="{OUTLINE}"'
        )
        cells.append(f'<rect x="{x + 1}" y="{y + 1}" width="{width - 2}" height="{height - 2}" {fill}/>')
        if has_numbers:
            color = "#ffffff" if class_number is not None else DIGITS
            cells.append(f'<text x="{x + width / 2:g}" y="{y + 15}" fill="{color}">{rank}</text>')
    total = columns * width, math.ceil(len(shown) / columns) * height
    return image_data(
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {total[0]} {total[1]}" width="{total[0]}" height="{total[1]}"'
        f' font-family="sans-serif" font-size="11" text-anchor="middle">{"".join(cells)}</svg>'
    )


def mesh_caption(names: Sequence[str], sizes: Sequence[int], count: int) -> str:
    """Return what rows and columns of the picture are."""
    cut = f" The first {MAX_CELLS:,} of {count:,} ranks are drawn." if count > MAX_CELLS else ""
    if len(sizes) < 2:
        return f"One dimension: {names[0]}={sizes[0]}." + cut
    rows = " x ".join(f"{n}={s}" for n, s in zip(names[:-1], sizes[:-1], strict=True))
    return f"Rows: {rows}; columns: {names[-1]}={sizes[-1]}.{cut}"


def image_data(svg: str) -> str:
    """Return an SVG as a data URI."""
    return f"data:image/svg+xml;base64,{base64.b64encode(svg.encode()).decode()}"


def image(svg_data: str, alt: str, style: str) -> str:
    """Return the HTML of a picture."""
    return f'<img alt="{escape(alt)}" style="{style}" src="{svg_data}">'
