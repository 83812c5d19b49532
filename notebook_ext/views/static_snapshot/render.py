"""Static snapshot of the explorer as HTML and text, without kernel, scripts and network."""

from __future__ import annotations

import base64
import functools
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from html import escape
from typing import Any

from engine.records.counts import groups, has_graph
from engine.records.format_amounts import format_seconds
from engine.records.session import CompilationRecord, Session
from notebook_ext.views import source_lines
from notebook_ext.views.breaks import breaks
from notebook_ext.views.format_text import one_line, pluralize, sanitize, shorten_paths
from notebook_ext.views.graph.node_table import graph_svg
from notebook_ext.views.kernels import kernels
from notebook_ext.views.linked.listing_text import kernel_lines
from notebook_ext.views.performance.timings import timings
from notebook_ext.views.plan import plan_devices, plans, section_html
from notebook_ext.views.recompiles import recompiles
from notebook_ext.views.static_snapshot.stage_tables import Table, backward_table, detail_tables, line_tables
from notebook_ext.views.summary import summary

UNFOLDED = ("Graph breaks (", "Compilations (", "Kernels", "Mesh", "Rank")
"""Starts of the titles of sections that are open if there is no live explorer."""
MAX_ROWS = 60
"""Maximum number of rows in one table."""
MAX_STAGE_ROWS = 24
"""Maximum number of rows in a table about one stage of one compilation."""
MAX_NODES = 40
"""Maximum number of nodes in one picture."""
PORTABLE_COLUMNS = 5
"""Columns of the table of CPU kernels that are equal on every CPU."""
MAX_LINES = 120
"""Maximum number of lines in one text."""

CODE = "margin:4px 0;padding:6px 8px;background:#f7f7f7;color:#1f1f1f;border:1px solid #d0d0d0;overflow-x:auto;font:12px/17px monospace;white-space:pre"
CELL = "text-align:left;vertical-align:top"
ROW = "background:none;border-bottom:1px solid #8888"
MUTED = "color:var(--jp-ui-font-color2,#5a5a5a)"
HUES = ("#666666", "#0b63a5", "#b04500", "#00705a", "#8f3f78", "#735700", "#4b5966")


@dataclass(frozen=True)
class SnapshotSection:
    """One collapsed section of the static snapshot."""

    title: str
    html: str


def snapshot_html(session: Session, limit_kb: int = 100, *, timed: bool = True, unfolded: bool = False) -> str:
    """Return the static snapshot as one ``<details>`` of at most ``limit_kb`` kB.

    It is folded; ``unfolded``, it is open at graph breaks and kernels.

    Sections that do not fit are left out, and a line names them. Styles are inline and pictures are data
    URIs, because viewers may drop scripts and style sheets. With ``timed`` off, it has no times and no LLVM IR.
    """
    kept: list[str] = []
    left_out: list[str] = []
    room = limit_kb * 1000 - 800
    for section in _snapshot_sections(session, timed):
        text = _details_html(section.title, section.html, unfolded and section.title.startswith(UNFOLDED))
        size = len(text.encode())
        if size > room:
            left_out.append(section.title)
            continue
        room -= size
        kept.append(text)
    if left_out:
        names = one_line(", ".join(left_out), 200)
        kept.append(f"<p>Left out to stay below {limit_kb} kB: {_escape_text(names)}.</p>")
    size_kb = max(1, round(sum(len(k.encode()) for k in kept) / 1000))
    return _details_html(
        f"Static snapshot: tables and pictures that need no kernel ({size_kb} kB)", "".join(kept), unfolded
    )


def summary_html(session: Session, *, timed: bool = True) -> str:
    """Return the summary line as HTML without buttons; hints and notes follow below it."""
    summary_line = summary(session, timed=timed)
    parts = [
        f"<b>{_escape_text(item.text)}</b>" if item.kind == "name" else _escape_text(item.text)
        for item in summary_line.items
        if item.kind != "action"
    ]
    line = "".join(parts).replace(" ,", ",")
    below = "".join(f'<div style="{MUTED}">{_escape_text(t)}</div>' for t in (*summary_line.hints, *summary_line.notes))
    return f'<div style="margin:2px 0">{line}{below}</div>'


def snapshot_text(session: Session) -> str:
    """Return the static snapshot as text: summary, breaks, recompiles, kernels and times."""
    if (plan := plans.get(session)) is not None:
        return str(plan)
    lines = [summary(session).text]
    stops = breaks(session)
    examples: set[str] = set()
    for record in stops["breaks"]:
        lines += [
            "",
            f"{'Exception' if record['is_error'] else 'Break'} in {record['root']}, {record['place']}: {record['title']}",
        ]
        lines += [f"    {line}" for line in record["pointed"].splitlines()]
        lines += [f"  {record['why']}"] if record["why"] else []
        lines += [f"  - {hint}" for hint in record["hints"]]
        for word in ("before", "after"):
            if record[word] and record["kind"] not in examples:
                lines += [f"  {word.capitalize()}:", *(f"      {line}" for line in record[word].splitlines())]
        examples.add(record["kind"])
        lines += [f"  Discarded attempt: {attempt}" for attempt in record["attempts"]]
    lines += [f"Discarded attempt (retraced without a break): {attempt}" for attempt in stops["attempts"]]
    for lane in recompiles(session)["lanes"]:
        for column in lane["columns"]:
            if column["outcome"] != "hit" and column["rejections"]:
                lines += ["", f"{lane['name']}, call {column['first']}: {column['outcome']}, because"]
                lines += [f"  entry {r['entry']}: {r['sentence'] or r['short']}" for r in column["rejections"]]
    rows = kernels(session)["rows"]
    if rows:
        lines += ["", "Kernels"]
        lines += [
            f"  {r['compilation']} {r['kernel']} {r['name']}{', ran on this CPU' if r['is_cpu'] else ''}: {', '.join(r['nodes'][:8])}"
            for r in rows[:MAX_ROWS]
        ]
        lines += [f"  … {len(rows) - MAX_ROWS} more"] if len(rows) > MAX_ROWS else []
    totals = timings(session)["totals"]
    if totals:
        lines += ["", "Time by stage: " + ", ".join(f"{t['stage']} {t['text']}" for t in totals)]
    return shorten_paths("\n".join(lines))


def _snapshot_sections(session: Session, timed: bool) -> Iterator[SnapshotSection]:
    if (plan := plans.get(session)) is not None:
        yield from (SnapshotSection(s["title"], section_html(s)) for s in plan_devices(plan)["sections"])
        return
    yield from _break_sections(session)
    yield from _recompile_sections(session, timed)
    yield from _source_sections(session)
    yield from _kernel_sections(session, is_portable=not timed)
    firsts = [c for g in groups(session) if (c := next(filter(has_graph, g.compilations), None)) is not None]
    for first in firsts:
        yield from _stage_sections(line_tables(session, first))
        yield from _graph_sections(session, first)
    yield from _stage_sections([backward_table(session)])
    for group in groups(session):
        if group.compilations:
            yield from _guard_sections(session, group.compilations[0])
    if timed:
        yield from _timing_sections(session)
    for first in firsts:
        yield from _stage_sections(detail_tables(session, first))
    yield from _triton_sections(session, is_portable=not timed)


def _break_sections(session: Session) -> Iterator[SnapshotSection]:
    stops = breaks(session)
    examples: set[str] = set()
    titles = ("Graph breaks", False), ("Exceptions", True)
    for title, rows in ((t, [b for b in stops["breaks"] if b["is_error"] == e]) for t, e in titles):
        if not rows:
            continue
        body = "".join(
            f"<p><b>{_escape_text(b['root'])}, {_escape_text(b['place'])}:</b> {_escape_text(b['title'])}</p>{_code_html(b['pointed'])}<p>{_escape_text(b['why'])}</p>"
            + _list_html(b["hints"])
            + _example_html(b, examples)
            + _discarded_attempts(b["attempts"])
            for b in rows[:MAX_ROWS]
        )
        yield SnapshotSection(f"{title} ({len(rows)})", body + _omitted_rows_html(len(rows), title.lower()[:-1]))
    if stops["attempts"]:
        title = f"Discarded attempts (retraced without a break) ({len(stops['attempts'])})"
        yield SnapshotSection(
            title, _list_html(stops["attempts"][:MAX_ROWS]) + _omitted_rows_html(len(stops["attempts"]), "attempt")
        )
    if stops["skipped"]:
        rows = [[s["name"], s["reason"], s["hint"]] for s in stops["skipped"]]
        yield SnapshotSection(f"Not compiled ({len(rows)})", _table_html(["Name", "Reason", "Hint"], rows))
    if stops["failures"]:
        rows = [[f["compilation"], f["sentence"], f["fallback"]] for f in stops["failures"]]
        yield SnapshotSection(f"Internal errors ({len(rows)})", _table_html(["Entry", "Error", "Fallback"], rows))


def _example_html(record: dict[str, Any], shown: set[str]) -> str:
    """Return an example with such a graph break and one without it, once for each kind."""
    if not record["before"] or record["kind"] in shown:
        return ""
    shown.add(record["kind"])
    return f"<p>Example with this graph break:</p>{_code_html(record['before'])}<p>Without it:</p>{_code_html(record['after'])}"


def _discarded_attempts(attempts: list[str]) -> str:
    return f"<p>Discarded attempts:</p>{_list_html(attempts)}" if attempts else ""


def _recompile_sections(session: Session, timed: bool) -> Iterator[SnapshotSection]:
    rows = []
    for lane in recompiles(session)["lanes"]:
        for column in lane["columns"]:
            if column["outcome"] == "compiled":
                why = (
                    "; ".join(f"{r['entry']} guard failed: {r['short']}" for r in column["rejections"]) or "first call"
                )
                entry = next((e for e in lane["entries"] if e["id"] == column["entry"]), None)
                cost = [format_seconds(entry["seconds"]) if entry else ""] if timed else []
                name = source_lines.frame_name(session, lane["frame"], 80)
                rows.append([name, f"{column['first']}", column["inputs"], why, *cost])
    if rows:
        heads = ["Function", "Call", "Inputs", "Why", *(["Time"] if timed else [])]
        yield SnapshotSection(f"Compilations ({len(rows)})", _table_html(heads, rows))


def _source_sections(session: Session) -> Iterator[SnapshotSection]:
    for group in groups(session):
        compilation = next((c for c in group.compilations if has_graph(c)), None)
        if compilation is None:
            continue
        numbers = source_lines.ordinals(session, compilation).numbers
        rows = _function_rows(
            source_lines.source_rows(session, numbers, group.root.file), numbers, group.root.first_line
        )
        lines = []
        for row in rows[:MAX_LINES]:
            number = numbers.get((row.file, row.line), 0)
            lines.append(
                f'{_badge_html(number)}<span style="color:#616161">{row.line or "":>5} </span>{_escape_text(row.text)}'
            )
        if lines:
            body = (
                f'<pre style="{CODE}">' + "\n".join(lines) + "</pre>" + _omitted_rows_html(len(rows), "line", MAX_LINES)
            )
            yield SnapshotSection(f"Source of {one_line(group.root.name, 60)}, lines numbered in order of use", body)


def _function_rows(
    rows: list[source_lines.SourceRow], numbers: dict[source_lines.FileLine, int], first_line: int
) -> list[source_lines.SourceRow]:
    """Return the rows of each file up to its last line in use, and headings.

    Rows start at the first line of the function or the first line in use, whichever comes first.
    """
    ends = {file: max(line for f, line in numbers if f == file) for file, _ in numbers}
    starts = {file: min([first_line, *(line for f, line in numbers if f == file)]) for file in ends}
    return [r for r in rows if not r.line or starts.get(r.file, 0) <= r.line <= ends.get(r.file, 0)]


def _kernel_sections(session: Session, *, is_portable: bool) -> Iterator[SnapshotSection]:
    none: dict[str, Any] = {}
    yield from _cpu_kernel_sections([r for r in kernels(session)["rows"] if r["is_cpu"]], is_portable=is_portable)
    rows = [
        [
            r["compilation"],
            f"{r['kernel']} {r['name']}",
            ", ".join(r["nodes"][:10]) + (" …" if len(r["nodes"]) > 10 else ""),
            r["grid"],
            r["bytes"],
            "" if compiled.get("registers") is None else str(compiled["registers"]),
            "" if compiled.get("spills") is None else str(compiled["spills"]),
            r["check"],
        ]
        for r in kernels(session)["rows"]
        if not r["is_cpu"]
        for compiled in (next(reversed(r["targets"].values()), none),)
    ]
    if rows:
        heads = ["Entry", "Kernel", "Fused nodes", "Grid", "Bytes moved", "Registers", "Spills", "Checked"]
        yield SnapshotSection(
            f"Kernels{'' if is_portable else f' for {one_line(session.target, 20)}'} ({len(rows)})",
            _table_html(heads, rows),
        )


def _cpu_kernel_sections(rows: list[dict[str, Any]], *, is_portable: bool) -> Iterator[SnapshotSection]:
    """Yield the table of the kernels that ran on the CPU, if there are any.

    If ``is_portable``, without what differs between CPUs.
    """
    cells = []
    for row in rows:
        compiled, measured = row["targets"].get("cpu", {}), row["measured"]
        counts = [compiled.get("spills"), compiled.get("instructions", {}).get("asm")]
        cells.append(
            [
                row["compilation"],
                f"{row['kernel']} {row['name']}",
                ", ".join(row["nodes"][:10]) + (" …" if len(row["nodes"]) > 10 else ""),
                row["grid"].strip("()"),
                row["bytes"],
                compiled.get("vector", ""),
                *("" if count is None else f"{count:,}" for count in counts),
                format_seconds(measured["seconds"]) if measured else "",
                row["check"],
            ]
        )
    if cells:
        cpu = next((name for r in rows if (name := r["targets"].get("cpu", {}).get("cpu"))), "")
        heads = ["Entry", "Kernel", "Fused nodes", "Iterations", "Bytes moved", "Vector"]
        heads += ["Spills", "Instructions", "Time", "Checked"]
        if is_portable:
            cpu, heads, cells = "", heads[:PORTABLE_COLUMNS], [row[:PORTABLE_COLUMNS] for row in cells]
        title = f"Kernels that ran on this CPU{f', {cpu}' if cpu else ''} ({len(cells)})"
        yield SnapshotSection(title, _table_html(heads, cells))


def _stage_sections(tables: Iterable[Table]) -> Iterator[SnapshotSection]:
    for title, heads, rows in tables:
        if rows:
            yield SnapshotSection(f"{title} ({len(rows)})", _table_html(heads, rows, MAX_STAGE_ROWS))


def _graph_sections(session: Session, compilation: CompilationRecord) -> Iterator[SnapshotSection]:
    for record in compilation.graphs[:1]:
        if record.nodes:
            name = source_lines.full_name(session, compilation)
            picture = base64.b64encode(graph_svg(session, compilation, record, MAX_NODES).encode()).decode()
            alt = f"{one_line(record.title, 40)} of {name}: {pluralize(len(record.nodes), 'node')}"
            body = f'<img alt="{_escape_line(alt)}" style="max-width:100%;background:#fff" src="data:image/svg+xml;base64,{picture}">'
            yield SnapshotSection(f"Graph of {name} ({pluralize(len(record.nodes), 'node')})", body)


def _guard_sections(session: Session, compilation: CompilationRecord) -> Iterator[SnapshotSection]:
    guard_records = compilation.guards.guards if compilation.guards else ()
    if guard_records:
        rows = [
            [str(i), g.source, g.kind, one_line(g.expected, 60), source_lines.line_name(session, g.span)]
            for i, g in enumerate(guard_records, 1)
        ]
        yield SnapshotSection(
            f"Guards of {source_lines.full_name(session, compilation)} ({len(guard_records)})",
            _table_html(["#", "Value", "Guard", "Expected", "Because of"], rows),
        )


def _timing_sections(session: Session) -> Iterator[SnapshotSection]:
    rows = [
        [
            r["compilation"],
            r["name"],
            r["text"],
            ", ".join(f"{b['stage']} {b['text']}" for b in r["bars"] if b["depth"] <= 1),
        ]
        for r in timings(session)["rows"]
    ]
    if rows:
        yield SnapshotSection("Compile times", _table_html(["Entry", "Function", "Whole", "Stages"], rows))


def _triton_sections(session: Session, *, is_portable: bool) -> Iterator[SnapshotSection]:
    """Yield the text of each kernel; LLVM IR, which differs by CPU, if not ``is_portable``."""
    seen: set[str] = set()
    for compilation in session.compilations:
        for kernel in (*compilation.kernels, *(() if is_portable else compilation.cpu_kernels)):
            if kernel.text not in seen:
                seen.add(kernel.text)
                lines = [text for _, text in kernel_lines(sanitize(kernel.text))]
                is_llvm = kernel.language == "llvm"
                body = (_code_html if is_llvm else _highlight_html)("\n".join(lines[:MAX_LINES]))
                body += _omitted_rows_html(len(lines), "line", MAX_LINES)
                yield SnapshotSection(
                    f"{'LLVM IR' if is_llvm else 'Triton'} of {one_line(kernel.name, 60)} ({source_lines.full_name(session, compilation)})",
                    body,
                )


_COLORS = {"Keyword": "#007a00", "Literal.String": "#ba2121", "Literal.Number": "#006666", "Comment": "#3a6f6f"}


@functools.cache
def _color(kind: Any) -> str:
    return next((c for name, c in _COLORS.items() if str(kind).removeprefix("Token.").startswith(name)), "")


def _highlight_html(code: str) -> str:
    """Return Python code as HTML with inline colors for a light background.

    Only colored text gets an element. Without Pygments the text is plain.
    """
    try:
        from pygments.lexers import PythonLexer
    except ImportError:
        return _code_html(code)
    parts = []
    for kind, text in PythonLexer(stripnl=False, ensurenl=False).get_tokens(shorten_paths(code)):
        color = _color(kind)
        parts.append(f'<span style="color:{color}">{escape(text)}</span>' if color else escape(text))
    return f'<pre style="{CODE}">{"".join(parts)}</pre>'


def _escape_text(text: str) -> str:
    return escape(shorten_paths(sanitize(text)), quote=True)


def _escape_line(text: str) -> str:
    return _escape_text(one_line(text, 300))


def _details_html(title: str, body: str, is_open: bool = False) -> str:
    return f'<details{" open" if is_open else ""} style="margin:2px 0 2px 4px"><summary style="cursor:pointer">{_escape_text(title)}</summary>{body}</details>'


def _code_html(text: str) -> str:
    return f'<pre style="{CODE}">{_escape_text(text)}</pre>' if text else ""


def _list_html(texts: Iterable[str]) -> str:
    items = "".join(f"<li>{_escape_text(t)}</li>" for t in texts)
    return f"<ul>{items}</ul>" if items else ""


def _badge_html(number: int) -> str:
    hue = HUES[(number - 1) % 6 + 1] if number else "transparent"
    return f'<span style="background:{hue};color:#fff"><b>{number or "":>3}</b></span> '


def _table_html(heads: list[str], rows: list[list[str]], limit: int = MAX_ROWS) -> str:
    head = "".join(f'<th style="{CELL}">{_escape_text(h)}</th>' for h in heads)
    body = "".join(
        f'<tr style="{ROW}">' + "".join(f'<td style="{CELL}">{_escape_text(c)}</td>' for c in row) + "</tr>"
        for row in rows[:limit]
    )
    return f'<table style="border-collapse:collapse;font-size:12px"><tr style="{ROW}">{head}</tr>{body}</table>{_omitted_rows_html(len(rows), "row", limit)}'


def _omitted_rows_html(count: int, word: str, limit: int = MAX_ROWS) -> str:
    return f"<p>{pluralize(count - limit, f'more {word}')} not shown.</p>" if count > limit else ""
