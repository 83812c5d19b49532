"""A plan of a distributed step: sections of the Devices view, and the same as static HTML."""

from __future__ import annotations

import linecache
from collections.abc import Iterator
from html import escape
from typing import Any

from engine.interrupts.weak_tables import WeakTable
from engine.ir.user_code_files import cell_names
from engine.records.format_amounts import format_seconds
from engine.records.plan import (
    MEMORY_CATEGORIES,
    MemoryPoint,
    Plan,
    RankClass,
    collective_rows,
    format_bytes,
    hidden_text,
)
from engine.records.ranks.groups import format_ranks
from engine.records.session import Session
from notebook_ext.views.devices import class_color, image, image_data, mesh_caption, mesh_image
from notebook_ext.views.format_text import one_line, pluralize

COLORS = ("#0b63a5", "#6cb4ee", "#b04500", "#00705a", "#8f3f78", "#a88400", "#868686", "#4b5966")
"""Colors of the memory categories, named in the legend."""
COMPUTATION, EXPOSED, HIDDEN = "#00705a", "#b04500", "#6cb4ee"
MAX_ROWS = 60
"""Rows of the table of collectives."""
MUTED = "color:var(--jp-ui-font-color2,#757575)"
PICTURE = "display:block;max-width:100%;margin:4px 0"
CELL = "text-align:left;vertical-align:top;padding:2px 8px;border-bottom:1px solid #8888;background:none"
HEADS = ("Calls", "Collective", "Bytes", "Group", "Link", "Phase", "Exposed", "Line", "Code")
MODEL = (
    "Collectives and live storage bytes are exact for eager execution; the allocator's rounding and the compiler's fusions"
    " are not counted. Times come from a model with these constants:"
)
NOT_RUN = "The cell was planned, not run: leave out --world to compile it."
"""Sentence about the views that a plan leaves empty."""
plans: WeakTable[Session, Plan] = WeakTable()
"""Plans by the session that shows them."""


def plan_session(plan: Plan) -> Session:
    """Return a session without compilations that shows a plan."""
    session = Session(device=plan.device)
    plans[session] = plan
    for note in plan.notes:
        session.add_note(note)
    return session


def plan_title(plan: Plan) -> str:
    """Return what is planned, and for which ranks."""
    mesh = ", ".join(f"{name}={size}" for name, size in plan.mesh.items())
    return f"plan for {plan.world:,} ranks{f' ({mesh})' if mesh else ''} on {plan.device}"


def plan_figures(plan: Plan) -> list[tuple[str, str]]:
    """Return the main figures by name, each of the ranks with the largest peak of memory."""
    worst = plan.worst
    return [
        ("Ranks", f"{plan.world:,}"),
        ("Peak memory", format_bytes(worst.peak_bytes)),
        ("Collectives in a step", f"{len(worst.collectives):,}"),
        ("Bytes of collectives", format_bytes(worst.collective_bytes)),
        ("Modeled step", format_seconds(worst.step_seconds, 3)),
    ]


def plan_devices(plan: Plan) -> dict[str, Any]:
    """Return the sections that ``devices`` returns for a session; some have a table."""
    sections = [_mesh_section(plan)]
    for one in plan.classes:
        sections += _class_sections(one)
    constants = ", ".join(f"{name} {value:g}" for name, value in plan.constants.items())
    sections.append(_section("How this was computed", [_row("", f"{MODEL} {constants}.")], is_open=False))
    outcomes = (f"{format_ranks(one.ranks).capitalize()}: {', '.join(_facts(one))}." for one in plan.classes)
    return {"outcome": one_line(" ".join((*outcomes, *plan.notes)), 600), "sections": sections}


def section_html(section: dict[str, Any]) -> str:
    """Return a section as HTML that needs no kernel, script or network."""
    picture = image(section["image"], section["title"], PICTURE) if section.get("image") else ""
    rows = "".join(
        f"<div>{_square_html(r['color']) if 'color' in r else ''}<b>{escape(r['name'])}</b> {escape(r['text'])}</div>"
        for r in section["rows"]
    )
    if "cells" not in section:
        return picture + rows
    head, *body = (
        f"<tr>{''.join(f'<{tag} style={chr(34)}{CELL}{chr(34)}>{escape(c)}</{tag}>' for c in cells)}</tr>"
        for tag, cells in (("th", section["heads"]), *(("td", c) for c in section["cells"]))
    )
    table = f'<table style="border-collapse:collapse;font-size:13px;margin:4px 0">{head}{"".join(body)}</table>'
    return f'<div style="overflow-x:auto">{table}</div>{rows}'


def _section(title: str, rows: list[dict[str, Any]], *, is_open: bool = True, **more: Any) -> dict[str, Any]:
    return {"title": title, "rows": rows, "open": is_open, **more}


def _row(name: str, text: str, **more: Any) -> dict[str, Any]:
    return {"name": name, "text": one_line(text, 1000), **more}


def _mesh_section(plan: Plan) -> dict[str, Any]:
    """Return the picture of the mesh and what a rank of each class holds at the peak."""
    names, sizes = tuple(plan.mesh) or ("world",), tuple(plan.mesh.values()) or (plan.world,)
    classes = {rank: i for i, one in enumerate(plan.classes) for rank in one.ranks}
    rest = " Outlined ranks were not planned." if len(classes) < plan.world else ""
    rows = [
        _row(format_ranks(one.ranks).capitalize(), ", ".join(_facts(one)), color=class_color(i))
        for i, one in enumerate(plan.classes)
    ]
    notes = [_row("", note) for one in plan.classes for note in one.notes]
    caption = _row("", mesh_caption(names, sizes, plan.world) + rest)
    return _section("Mesh", [caption, *rows, *notes], image=mesh_image(sizes, range(plan.world), classes))


def _facts(one: RankClass) -> Iterator[str]:
    yield f"peak {format_bytes(one.peak_bytes)} in {one.peak.phase}{f' ({one.peak_line})' if one.peak_line else ''}"
    if one.step_peak != one.peak:
        yield f"peak of the steps {format_bytes(one.step_peak.total)}"
    yield f"modeled step {format_seconds(one.step_seconds, 3)}"
    yield f"{pluralize(len(one.collectives), 'collective')}, {format_bytes(one.collective_bytes)}"


def _class_sections(one: RankClass) -> Iterator[dict[str, Any]]:
    who = format_ranks(one.ranks).capitalize()
    yield _section(
        f"{who}: live memory from the start to step {one.steps}",
        [_row("", "At the peak of the steps:"), *_legend_rows(one.step_peak)],
        image=image_data(memory_svg(one.curve)),
    )
    times = ((COMPUTATION, "computation", one.compute_seconds), (EXPOSED, "communication, exposed", one.exposed_seconds), (HIDDEN, "communication, hidden", one.hidden_seconds))  # fmt: skip
    yield _section(
        f"{who}: time of step {one.steps}",
        [
            *(_row(name, format_seconds(seconds, 3), color=color) for color, name, seconds in times),
            _row("", "Upper bar: shares of the step; lower bar: when collectives run."),
        ],
        image=image_data(time_svg(one)),
    )
    yield _collectives_section(who, one)


def _legend_rows(peak: MemoryPoint) -> list[dict[str, Any]]:
    parts = zip(COLORS, MEMORY_CATEGORIES, peak.bytes, strict=True)
    return [_row(name, format_bytes(size), color=color) for color, name, size in parts if size]


def memory_svg(curve: tuple[MemoryPoint, ...], width: int = 1000, height: int = 160) -> str:
    """Return the memory curve as stacked areas, one for each category."""
    top = max((p.total for p in curve), default=0) or 1
    last = max((p.at for p in curve), default=0) or 1
    low = [0] * len(curve)
    areas = []
    for index, color in enumerate(COLORS):
        high = [base + p.bytes[index] for base, p in zip(low, curve, strict=True)]
        if any(p.bytes[index] for p in curve):
            there = [(p.at / last * width, height - h / top * height) for p, h in zip(curve, high, strict=True)]
            back = [(p.at / last * width, height - h / top * height) for p, h in zip(curve, low, strict=True)]
            points = " ".join(f"{x:.1f},{y:.1f}" for x, y in (*there, *reversed(back)))
            areas.append(f'<polygon fill="{color}" points="{points}"/>')
        low = high
    return _svg_text(width, height, "".join(areas))


def time_svg(one: RankClass, width: int = 1000, height: int = 36) -> str:
    """Return the shares of the step above, and its collectives on a clock below."""
    scale = width / (one.step_seconds or 1.0)
    exposed = sum(c.exposed_seconds for c in one.collectives)
    bars = [f'<rect x="0" y="2" width="{one.compute_seconds * scale:.1f}" height="14" fill="{COMPUTATION}"/>']
    bars += [f'<rect x="{one.compute_seconds * scale:.1f}" y="2" width="{one.exposed_seconds * scale:.1f}" height="14" fill="{EXPOSED}"/>'] if exposed else []  # fmt: skip
    bars += [
        f'<rect x="{c.start * scale:.1f}" y="20" width="{max(0.5, c.seconds * scale):.1f}" height="14"'
        f' fill="{EXPOSED if c.exposed_seconds > c.seconds / 2 else HIDDEN}"/>'
        for c in one.collectives
    ]
    return _svg_text(width, height, "".join(bars))


def _svg_text(width: int, height: int, inside: str) -> str:
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" preserveAspectRatio="none"'
        f' width="{width}" height="{height}">{inside}</svg>'
    )


def _square_html(color: str) -> str:
    return f'<span style="display:inline-block;width:10px;height:10px;background:{color};margin:0 4px 0 0"></span>'


def _collectives_section(who: str, one: RankClass) -> dict[str, Any]:
    rows = collective_rows(one.collectives)
    title = f"{who}: collectives of step {one.steps}"
    if not rows:
        return _section(title, [_row("", "The step has no collectives.")])
    cells = [
        [
            str(calls),
            f"{c.kind} {c.dtype}{hidden_text(c)}",
            format_bytes(total),
            f"{c.group} ({c.group_size})",
            c.link,
            c.phase,
            format_seconds(exposed, 3) if exposed else "0",
            f"{cell_names.get(c.file, c.file.rpartition('/')[2])}:{c.line}" if c.line else "",
            one_line(linecache.getline(c.file, c.line).strip(), 60) if c.line else "",
        ]
        for c, calls, total, exposed in rows[:MAX_ROWS]
    ]
    left = [_row("", f"… and {len(rows) - MAX_ROWS:,} more")] if len(rows) > MAX_ROWS else []
    return _section(title, left, heads=list(HEADS), cells=[[one_line(c, 120) for c in row] for row in cells])
