"""Comparison of two sessions, cache entries or stages, as text, as HTML and as JSON.

The HTML needs no kernel; the JSON is for the explorer.
"""

from __future__ import annotations

import html
import itertools
import zlib
from collections.abc import Iterable, Iterator
from typing import Any

from engine.observe.compare_sessions import compare_sessions
from engine.records.counts import breaks_of, compilation_counts, unique_kernels
from engine.records.format_amounts import format_bytes, format_seconds
from engine.records.kernels import KernelRecord
from engine.records.session import CompilationRecord, Session
from engine.records.session_comparison import AspectComparison, FrameComparison, SessionComparison
from notebook_ext.views import source_lines
from notebook_ext.views.cell_edits import diff_lines
from notebook_ext.views.entry_signature import entry_signature
from notebook_ext.views.format_text import one_line, pluralize, sanitize
from notebook_ext.views.linked.row_links import CPU, for_target, targets_of

CELL = "padding:2px 10px 2px 0;text-align:left;vertical-align:top"
STYLE = "font-family:var(--jp-ui-font-family,system-ui,sans-serif);font-size:13px;line-height:19px;margin:4px 0"
CODE = "font:12px/17px var(--jp-code-font-family,Menlo,Consolas,monospace);margin:0 0 4px 18px;white-space:pre-wrap;overflow-wrap:anywhere"
MUTED_STYLE = "color:var(--jp-ui-font-color2,#5a5a5a)"
MAX_ROWS = 200
"""Number of diff lines that are sent for one stage."""
STAGE_TITLES = {"fx": "Traced graph", "aten": "ATen graph", "joint": "Joint graph", "forward": "Forward graph", "backward": "Backward graph"}  # fmt: skip
LISTING_TITLES = {"asm": "Assembly", "ptx": "PTX", "sass": "SASS", "amdgcn": "AMDGCN"}
MAX_LINES = 40
"""Maximum number of displayed lines of one change."""


def comparison_text(comparison: SessionComparison, first: str, second: str) -> str:
    """Return the comparison as lines.

    Changes are marked with - and + as in a patch. An unchanged function has one line.
    """
    lines = [headline(comparison, first, second)]
    for frame in comparison.frames:
        lines += _frame_lines(frame, first, second)
    return "\n".join(lines)


def headline(comparison: SessionComparison, first: str, second: str) -> str:
    """Return one sentence: how many functions differ, and in which counts."""
    a, b = one_line(first, 40), one_line(second, 40)
    changed = [f for f in comparison.frames if not f.is_same]
    if not changed:
        figures = dict.fromkeys(
            _title(c)
            for f in comparison.frames
            for c in f.aspects
            if c.is_figure and c.first != c.second and "time" not in c.aspect
        )
        ignored = ", ".join(["times", *(f"numbers of {name}" for name in figures)])
        return f"{a} and {b}: no difference in {pluralize(len(comparison.frames), 'function')}, ignoring {ignored}."
    totals = ", ".join(
        f"{c.aspect} {c.first} → {c.second}" for c in comparison.totals if c.first != c.second and c.aspect != "graphs"
    )
    return (
        f"{a} → {b}: {len(changed)} of {pluralize(len(comparison.frames), 'function')} {'differs' if len(changed) == 1 else 'differ'}"
        + (f"; {totals}" if totals else "")
        + "."
    )


def _frame_lines(frame: FrameComparison, first: str, second: str) -> Iterator[str]:
    name = f"{one_line(frame.name, 60)}  {one_line(frame.file_name, 60)}".rstrip()
    if not frame.first or not frame.second:
        yield f"{name}: only in {one_line(first if frame.first else second, 40)}"
        return
    yield f"{name}: {frame.verdict}"
    for change in frame.aspects:
        if not change.is_same:
            yield f"  {change.aspect}: {_counts_text(change)}"
            yield from (f"    {mark} {text}" for mark, text in _diff_lines(change))
    yield from _kernel_lines(frame)


def _kernel_lines(frame: FrameComparison) -> Iterator[str]:
    """Yield the kernels side by side where they fuse other operators."""
    changed = [pair for pair in frame.kernels if not pair.is_same]
    if changed:
        yield "  kernels side by side:"
    for pair in changed[:MAX_LINES]:
        sides = ((pair.first, pair.first_operators), (pair.second, pair.second_operators))
        yield "    " + " | ".join(f"{one_line(n, 60)}: {one_line(ops, 80)}" if n else "none" for n, ops in sides)


def _counts_text(change: AspectComparison) -> str:
    return change.first if change.first == change.second else f"{change.first} → {change.second}"


def _diff_lines(change: AspectComparison) -> Iterator[tuple[str, str]]:
    both = [("-", t) for t in change.only_first] + [("+", t) for t in change.only_second]
    yield from ((mark, one_line(text, 200)) for mark, text in both[:MAX_LINES])
    if len(both) > MAX_LINES:
        yield " ", f"… and {len(both) - MAX_LINES} more lines"


def comparison_html(comparison: SessionComparison, first: str, second: str) -> str:
    """Return the comparison as HTML without scripts; all text is escaped."""
    rows = "".join(_frame_html(f, first, second) for f in comparison.frames)
    head = html.escape(headline(comparison, first, second))
    totals = "".join(
        f'<tr><td style="{CELL}">{html.escape(c.aspect)}</td><td style="{CELL}">{html.escape(c.first)}</td><td style="{CELL}">{html.escape(c.second)}</td></tr>'
        for c in comparison.totals
    )
    names = "".join(f'<th style="{CELL}">{html.escape(one_line(n, 40))}</th>' for n in ("", first, second))
    return f'<div style="{STYLE}"><b>{head}</b><table style="border-collapse:collapse;margin:6px 0"><tr>{names}</tr>{totals}</table>{rows}</div>'


def _frame_html(frame: FrameComparison, first: str, second: str) -> str:
    title, *lines = _frame_lines(frame, first, second)
    if not lines:
        return f'<div style="{MUTED_STYLE}">{html.escape(title)}</div>'
    body = "".join(f"<div>{html.escape(line[2:])}</div>" for line in lines)
    return f'<details open><summary>{html.escape(title)}</summary><div style="{CODE}">{body}</div></details>'


def comparison(first: Session, second: Session, names: tuple[str, str]) -> dict[str, Any]:
    """Return the changes between two sessions, function by function.

    ``only`` names the session if the other one does not have the function.
    """
    compared = compare_sessions(first, second)
    return {
        "headline": headline(compared, *names),
        "whole": [_change_row(c) for c in compared.totals],
        "frames": [
            {
                "name": source_lines.frame_name(
                    second if f.second else first, (f.second or f.first)[0].rpartition("/")[0]
                ),
                "place": one_line(f.file_name, 60),
                "first": list(f.first),
                "second": list(f.second),
                "only": "" if f.first and f.second else one_line(names[0] if f.first else names[1], 40),
                "verdict": one_line(f.verdict, 80),
                "changes": [_change_row(c) for c in f.aspects],
                "kernels": [{k: one_line(str(v), 200) for k, v in p.to_dict().items()} for p in f.kernels[:MAX_LINES]],
            }
            for f in compared.frames
        ],
    }


def _title(change: AspectComparison) -> str:
    """Return the name of a count: guards on functions and modules are not compared."""
    return "guards on values" if change.aspect == "guards" else change.aspect


def _change_row(change: AspectComparison) -> dict[str, Any]:
    return {
        "what": _title(change),
        "first": one_line(change.first, 200),
        "second": one_line(change.second, 200),
        "is_same": change.is_same,
        "only_first": [one_line(t, 300) for t in change.only_first[:MAX_LINES]],
        "only_second": [one_line(t, 300) for t in change.only_second[:MAX_LINES]],
    }


def entry_summary(session: Session, compilation: str) -> dict[str, Any]:
    """Return one cache entry in short for comparison: facts, guards and kernel resources.

    Guards and kernel resources are lines of text. ``programs`` and ``kernels`` are by target. A fact is a name, a text
    and the digest of what the text counts: two graphs of three operations may differ.

    Raises:
        KeyError: there is no such compilation.
    """
    record = session.compilation(compilation)
    programs = {target: for_target(record, target) for target in targets_of(record) or [""]}
    guards = [f"{g.source} {g.kind} {g.expected}" for g in (record.guards.guards if record.guards else ())]
    return {
        "facts": [[n, sanitize(t), d] for n, t, d in _compilation_facts(session, record, guards) if t],
        "guards": [one_line(text, 400) for text in guards],
        "programs": {target: [f for f in _program_facts(program) if f[1]] for target, program in programs.items()},
        "kernels": {t: [_kernel_text(k, t) for k in unique_kernels(program)] for t, program in programs.items()},
    }


Fact = tuple[str, str, str]


def _digest(lines: Iterable[str]) -> str:
    return f"{zlib.crc32(chr(10).join(lines).encode()):x}"


def _compilation_facts(session: Session, record: CompilationRecord, guards: list[str]) -> Iterator[Fact]:
    yield "Compiled because", one_line(record.cause, 200), ""
    yield "Inputs", entry_signature(session, record), ""
    yield "Breaks", str(len(breaks_of((record,)))), ""
    yield "Guards", str(len(guards)), _digest(guards)
    for graph in record.graphs:
        operations = sum(n.op not in ("placeholder", "output", "get_attr") for n in graph.nodes)
        title = STAGE_TITLES.get(graph.stage, f"Graph: {graph.stage}")
        yield title, pluralize(operations, "operation"), _digest(n.text for n in graph.nodes)
    if record.aot is not None:
        yield "Wrappers", ", ".join(one_line(w.name, 40) for w in record.aot.wrappers if w.actions), ""
        if record.aot.partition is not None:
            yield "Saved for backward", format_bytes(record.aot.partition.saved_bytes), ""
    yield "Compile time", format_seconds(sum(t.seconds for t in record.timings if not t.parent)), ""
    for timing in record.timings:
        if timing.parent:
            yield f"Time: {one_line(timing.stage, 30)}", format_seconds(timing.seconds), ""


def _program_facts(program: CompilationRecord) -> Iterator[Fact]:
    """Yield counts of kernels and ATen calls, and bytes moved, of one target's program."""
    totals = compilation_counts(program)
    yield "Kernels", str(totals.kernels), _digest(k.text for k in unique_kernels(program))
    yield "ATen calls", str(totals.aten_calls) if program.lowering else "", ""
    moved = [k.bytes_moved for k in program.kernels]
    yield "Bytes moved by kernels", format_bytes(sum(b for b in moved if b)) if any(moved) else "", ""


def _kernel_text(kernel: KernelRecord, target: str) -> str:
    """Return one kernel as a line: launch, memory, and resources on the target."""
    parts = [f"{kernel.id} {one_line(kernel.name, 60)}: grid {sanitize(kernel.grid) or '?'}"]
    parts += [f"{sanitize(k)}={sanitize(v)}" for k, v in (kernel.launch_args or {}).items()]
    parts += [f"{format_bytes(kernel.bytes_moved)} moved"] if kernel.bytes_moved is not None else []
    if target == CPU:
        return ", ".join(parts)
    compiled = next((t for t in kernel.targets if t.target == target), None)
    if compiled is None or compiled.resources is None:
        return ", ".join([*parts, one_line(compiled.error, 200) if compiled and compiled.error else "not compiled"])
    resources = compiled.resources
    parts += [
        f"{resources.registers} registers",
        f"{resources.spills} spills",
        f"{format_bytes(resources.shared_bytes)} shared",
    ]
    parts += [f"occupancy {resources.occupancy:.0%}"] if resources.occupancy is not None else []
    parts += [f"{x.stage} {x.instructions}" for x in compiled.listings if x.instructions]
    return ", ".join(parts)


def stage_differences(before: CompilationRecord | None, after: CompilationRecord | None) -> list[dict[str, Any]]:
    """Return the stages that differ, in the order of the pipeline: title and diff."""
    old, new = ({} if c is None else _texts_by_title(c, before) for c in (before, after))
    old_listings, new_listings = ({} if c is None else _listings_by_kernel(c, before) for c in (before, after))
    for label in dict.fromkeys((*old_listings, *new_listings)):
        left, right = old_listings.get(label), new_listings.get(label)
        # What only one side compiled is no difference of the kernel.
        titles = {**(left or {}), **(right or {})}.keys()
        both = [t for t in titles if left is None or right is None or (t in left and t in right)]
        old |= {t: left[t] for t in both if left}
        new |= {t: right[t] for t in both if right}
    differences = []
    for title in dict.fromkeys((*old, *new)):
        rows = diff_lines(old.get(title, ""), new.get(title, ""))
        if rows:
            shown = [(sign, one_line(text, 300)) for sign, text in rows[:MAX_ROWS]]
            differences.append({"title": title, "rows": shown, "cut": len(rows) - len(shown)})
    return differences


def session_differences(before: Session, after: Session) -> list[dict[str, Any]]:
    """Return the stages that differ of each compilation of two runs of a cell."""
    differences = []
    for old, new in itertools.zip_longest(before.compilations, after.compilations):
        session, one = (after, new) if new is not None else (before, old)
        name = source_lines.full_name(session, one)
        differences += [row | {"title": f"{name}: {row['title']}"} for row in stage_differences(old, new)]
    return differences


def _texts_by_title(compilation: CompilationRecord, before: CompilationRecord | None) -> dict[str, str]:
    """Return the texts of a compilation's graphs and kernels by title, without listings."""
    graphs = {
        STAGE_TITLES.get(g.stage, one_line(g.title, 60)): "\n".join(n.text for n in g.nodes) for g in compilation.graphs
    }
    kernels = _kernels_by_label(compilation, before or compilation)
    listed = {f"Kernel {label} ({k.language})": k.text for label, k in kernels.items()}
    return graphs | listed


def _listings_by_kernel(compilation: CompilationRecord, before: CompilationRecord | None) -> dict[str, dict[str, str]]:
    """Return the texts of the listings by title, by label of their kernel."""
    return {
        label: {
            f"{LISTING_TITLES[listing.stage]} of kernel {label}": listing.text
            for target in k.targets
            for listing in target.listings
            if listing.stage in LISTING_TITLES
        }
        for label, k in _kernels_by_label(compilation, before or compilation).items()
    }


def _kernels_by_label(compilation: CompilationRecord, before: CompilationRecord) -> dict[str, KernelRecord]:
    """Return the kernels by the id that a kernel of the same name has in ``before``.

    Ids count through a program: a kernel more at its start is no change of the later ones.
    """
    labels: dict[str, KernelRecord] = {}
    for old, new in (
        (before.cpu_kernels, compilation.cpu_kernels),
        (unique_kernels(before), unique_kernels(compilation)),
    ):
        ids = {k.name: k.id for k in old}
        matched = {ids[k.name] for k in new if k.name in ids}
        for k in new:
            labels[ids.get(k.name) or (f"{k.id}, new" if k.id in matched else k.id)] = k
    return labels
