"""A plan of a distributed step as HTML: memory curve, time bar and collectives by line."""

from __future__ import annotations

import linecache
from html import escape

from engine.ir.user_code_files import cell_names
from engine.records.plan import (
    MEMORY_CATEGORIES,
    MemoryPoint,
    Plan,
    RankClass,
    collective_rows,
    format_bytes,
    format_duration,
    hidden_text,
)
from engine.records.ranks.groups import format_ranks
from notebook_ext.views.devices import class_color, image, image_data, mesh_caption, mesh_image
from notebook_ext.views.format_text import one_line, pluralize

COLORS = ("#0b63a5", "#6cb4ee", "#b04500", "#00705a", "#8f3f78", "#a88400", "#868686", "#4b5966")
"""Colors of the memory categories, named in the legend."""
COMPUTATION, EXPOSED, HIDDEN = "#00705a", "#b04500", "#6cb4ee"
MAX_ROWS = 60
"""Rows of the table of collectives."""
STYLE = "font-family:var(--jp-ui-font-family,system-ui,sans-serif);font-size:13px;line-height:18px;margin:4px 0;max-width:1100px"
MUTED = "color:var(--jp-ui-font-color2,#757575)"
PICTURE = "display:block;width:100%;margin:4px 0;border:1px solid #8888"
CELL = "text-align:left;vertical-align:top;padding:2px 8px;border-bottom:1px solid #8888;background:none"
MODEL = (
    "Collectives and live storage bytes are exact for eager execution; the allocator's rounding and the compiler's fusions"
    " are not counted. Times come from a model with these constants:"
)


def plan_html(plan: Plan) -> str:
    """Return the plan as HTML that needs no kernel, script or network."""
    mesh = ", ".join(f"{name}={size}" for name, size in plan.mesh.items())
    head = f"<b>{_text(plan.name)}</b>: plan for {plan.world:,} ranks{f' ({_text(mesh)})' if mesh else ''} on {plan.device}"
    notes = "".join(f'<div style="{MUTED}">{_text(note)}</div>' for note in plan.notes)
    constants = ", ".join(f"{name} {value:g}" for name, value in plan.constants.items())
    model = f'<details style="{MUTED}"><summary>How this was computed</summary>{MODEL} {_text(constants)}.</details>'
    return f'<div style="{STYLE}"><div>{head}</div>{_mesh_html(plan)}{notes}{"".join(map(_class_html, plan.classes))}{model}</div>'


def _mesh_html(plan: Plan) -> str:
    """Return the picture of the mesh and what a rank of each class holds at the peak."""
    names, sizes = tuple(plan.mesh) or ("world",), tuple(plan.mesh.values()) or (plan.world,)
    classes = {rank: i for i, one in enumerate(plan.classes) for rank in one.ranks}
    held = "".join(
        f"<div>{_square_html(class_color(i))}{_text(format_ranks(one.ranks).capitalize())}: {_peak_parts_text(one.step_peak)}</div>"
        for i, one in enumerate(plan.classes)
    )
    rest = " Outlined ranks were not planned." if len(classes) < plan.world else ""
    picture = image(
        mesh_image(sizes, range(plan.world), classes), "Mesh of the ranks", "display:block;max-width:100%;margin:4px 0"
    )
    return f'{picture}<div style="{MUTED}">{_text(mesh_caption(names, sizes, plan.world))}{rest}</div>{held}'


def _peak_parts_text(peak: MemoryPoint) -> str:
    return ", ".join(f"{n} {format_bytes(b)}" for n, b in zip(MEMORY_CATEGORIES, peak.bytes, strict=True) if b)


def _class_html(one: RankClass) -> str:
    facts = (
        f"peak {format_bytes(one.peak_bytes)} in {one.peak.phase}{f' ({one.peak_line})' if one.peak_line else ''}",
        *([f"peak of the steps {format_bytes(one.step_peak.total)}"] if one.step_peak != one.peak else []),
        f"modeled step {format_duration(one.step_seconds)}",
        f"{pluralize(len(one.collectives), 'collective')}, {format_bytes(one.collective_bytes)}",
    )
    notes = "".join(f'<div style="{MUTED}">{_text(note)}</div>' for note in one.notes)
    return (
        f'<div style="margin-top:10px"><b>{format_ranks(one.ranks).capitalize()}</b>: {_text(", ".join(facts))}</div>{notes}'
        f"<div>Live memory from the start to step {one.steps}</div>{_image_html(memory_svg(one.curve), 'Live bytes over the operators of the run')}"
        f"{_legend_html(one.step_peak)}<div>Time of step {one.steps}</div>{_image_html(time_svg(one), 'Computation and communication')}"
        f"{_times_html(one)}{_collectives_html(one)}"
    )


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


def _image_html(svg: str, alt: str) -> str:
    return image(image_data(svg), alt, PICTURE)


def _legend_html(peak: MemoryPoint) -> str:
    parts = [
        f"{_square_html(color)}{name} {format_bytes(size)}"
        for color, name, size in zip(COLORS, MEMORY_CATEGORIES, peak.bytes, strict=True)
        if size
    ]
    return f'<div style="{MUTED}">At the peak of the steps: {" ".join(parts)}</div>'


def _times_html(one: RankClass) -> str:
    parts = (
        (COMPUTATION, "computation", one.compute_seconds),
        (EXPOSED, "communication, exposed", one.exposed_seconds),
        (HIDDEN, "communication, hidden", one.hidden_seconds),
    )
    text = " ".join(f"{_square_html(color)}{name} {format_duration(seconds)}" for color, name, seconds in parts)
    return f'<div style="{MUTED}">{text}. Upper bar: shares of the step; lower bar: when collectives run.</div>'


def _square_html(color: str) -> str:
    return f'<span style="display:inline-block;width:10px;height:10px;background:{color};margin:0 4px 0 8px"></span>'


def _collectives_html(one: RankClass) -> str:
    rows = collective_rows(one.collectives)
    heads = ("Calls", "Collective", "Bytes", "Group", "Link", "Phase", "Exposed", "Line")
    body = "".join(
        "<tr>" + "".join(f'<td style="{CELL}">{cell}</td>' for cell in cells) + "</tr>"
        for cells in (
            (
                str(calls),
                _text(f"{c.kind} {c.dtype}{hidden_text(c)}"),
                format_bytes(total),
                _text(f"{c.group} ({c.group_size})"),
                c.link,
                c.phase,
                format_duration(exposed),
                _line_html(c.file, c.line),
            )
            for c, calls, total, exposed in rows[:MAX_ROWS]
        )
    )
    if not rows:
        return "<div>The step has no collectives.</div>"
    head = "".join(f'<th style="{CELL}">{name}</th>' for name in heads)
    cut = f"<div>… {len(rows) - MAX_ROWS} more rows</div>" if len(rows) > MAX_ROWS else ""
    return f'<div style="overflow-x:auto"><table style="border-collapse:collapse;font-size:13px;margin:4px 0">{f"<tr>{head}</tr>"}{body}</table></div>{cut}'


def _line_html(file: str, line: int) -> str:
    if not line:
        return ""
    name = cell_names.get(file, file.rpartition("/")[2])
    return f"{_text(f'{name}:{line}')} <code>{_text(one_line(linecache.getline(file, line).strip(), 60))}</code>"


def _text(text: str) -> str:
    return escape(text)
