"""Linked view: panes of one compilation and the links between their rows, as compact JSON."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from engine.records.counts import is_user_error
from engine.records.lowering import LoweringRecord
from engine.records.session import CompilationRecord, Session
from notebook_ext.views.format_text import one_line, sanitize
from notebook_ext.views.linked.margin_marks import line_marks
from notebook_ext.views.linked.pane_rows import LinkedPanes, Pane

CPU = "cpu"
"""Target of kernels that ran on the CPU of the recording machine."""
INLINE_TEXT_LIMIT = 60_000
"""Maximum number of characters of a pane that is sent with the structure.

Longer panes are sent when they open.
"""


def linked(session: Session, compilation: str, target: str = "") -> dict[str, Any]:
    """Return panes and links of one compilation for one target.

    Large texts are left out; ``pane_text`` returns them. Rows are numbered through all panes, source first.
    ``up`` has for each row the rows that it comes from: a number, a list, or -1 for none; ``labels`` has an
    index into ``strings``.

    Raises:
        KeyError: there is no such compilation.
    """
    return linked_with_long_texts(session, compilation, target)[0]


def linked_with_long_texts(
    session: Session, compilation: str, target: str = ""
) -> tuple[dict[str, Any], dict[str, list[str]]]:
    """Return what ``linked`` returns, and by pane the texts that it leaves out.

    Raises:
        KeyError: there is no such compilation.
    """
    record = session.compilation(compilation)
    target = target or default_target(session, record)
    panes = LinkedPanes(session, for_target(record, target), target)
    small = {p.id: p.texts for p in panes.panes if sum(map(len, p.texts)) <= INLINE_TEXT_LIMIT}
    long = {p.id: p.texts for p in panes.panes if p.id not in small}
    return _panes_data(session, panes, targets_of(record)) | {"texts": small}, long


def pane_text(session: Session, compilation: str, target: str, pane: str) -> list[str]:
    """Return the lines of one pane.

    Raises:
        KeyError: there is no such compilation.
    """
    panes = LinkedPanes(session, for_target(session.compilation(compilation), target), target)
    return next((p.texts for p in panes.panes if p.id == pane), [])


def targets_of(record: CompilationRecord) -> list[str]:
    """Return the targets of this compilation's kernels, in that order; the CPU last."""
    targets = list(dict.fromkeys(t.target for k in record.kernels for t in k.targets))
    if not record.cpu_kernels:
        return targets
    pending = [record.lowering.target] if record.lowering is not None and record.kernels else []
    return [*(targets or pending), CPU]


def for_target(record: CompilationRecord, target: str) -> CompilationRecord:
    """Return a compilation with the kernels for a target: a GPU, or the CPU."""
    if target != CPU:
        return record
    ran = record.cpu_program
    lowering = LoweringRecord(CPU, ran.decisions, ran.externs, autotune_choices=ran.autotune_choices)
    return replace(record, kernels=ran.kernels, lowering=lowering, backward_lowering=None)


def default_target(session: Session, record: CompilationRecord) -> str:
    """Return the target to show first: the requested one, else the first that was compiled."""
    targets = targets_of(record)
    wanted = (record.lowering.target if record.lowering else "") or session.target
    return wanted if wanted in targets or not targets else targets[0]


def _panes_data(session: Session, panes: LinkedPanes, targets: list[str]) -> dict[str, Any]:
    strings = {"": 0}
    labels = [strings.setdefault(label, len(strings)) for pane in panes.panes for label in pane.labels]
    record = panes.compilation
    return {
        "compilation": record.id,
        "target": sanitize(panes.target),
        "targets": [sanitize(t) for t in targets] or [sanitize(panes.target)],
        "kernels": [_kernel_data(k, panes.target) for k in panes.kernels],
        "panes": [_pane_data(p) for p in panes.panes],
        "up": [origin for pane in panes.panes for origin in pane.origins],
        "callers": {str(row): callers for pane in panes.panes for row, callers in pane.callers.items()},
        "labels": labels,
        "library": _string_numbers([p.library for p in panes.panes], strings),
        "fates": _string_numbers([p.outcomes for p in panes.panes], strings),
        "marks": {str(row): mark for pane in panes.panes for row, mark in pane.marks.items()},
        "ordinals": {
            str(row): panes.ordinals.numbers[file_line]
            for file_line, row in panes.row_of_place.items()
            if file_line in panes.ordinals.numbers
        },
        "breaks": _break_titles(panes),
        "costs": _costs_by_row(session, panes),
        "strings": list(strings),
    }


def _string_numbers(columns: list[dict[int, str]], strings: dict[str, int]) -> dict[str, int]:
    """Return by row the number of its string; new strings get the next numbers."""
    return {str(row): strings.setdefault(text, len(strings)) for column in columns for row, text in column.items()}


def _pane_data(pane: Pane) -> dict[str, Any]:
    count = len(pane.texts)
    is_counted = pane.numbers == list(map(str, range(1, count + 1)))
    return {
        "id": pane.id,
        "title": pane.title,
        "parent": pane.parent,
        "language": pane.language,
        "first": pane.first,
        "rows": count,
        "lines": count - len(pane.heads),
        "heads": pane.heads,
        "numbers": None if is_counted else pane.numbers,
        "segments": [list(s) for s in pane.segments],
        "note": pane.note,
        "empty": pane.empty,
    }


def _kernel_data(kernel: Any, target: str) -> dict[str, Any]:
    record = next((t for t in kernel.targets if t.target == target), None)
    grid = f"grid {sanitize(kernel.grid)}" if kernel.grid else ""
    warps = (kernel.launch_args or {}).get("num_warps", "")
    if kernel.language == "llvm":
        grid = f"{sanitize(kernel.grid).strip('()')} iterations" if kernel.grid else ""
    facts = [grid, f"{sanitize(warps)} warps" if warps not in ("", "1") else "1 warp" if warps else ""]
    return {
        "id": kernel.id,
        "name": one_line(kernel.name, 60),
        "facts": " · ".join(f for f in facts if f),
        "is_compiled": bool(record and record.listings),
        "error": one_line(record.error, 300) if record else "",
    }


def _break_titles(panes: LinkedPanes) -> dict[str, str]:
    trace = panes.compilation.trace
    rows = panes.row_of_place
    return {
        str(rows[b.span.file, b.span.line]): ("" if is_user_error(b) else "Graph break here: ") + one_line(b.title)
        for b in (trace.breaks if trace else ())
        if b.span and (b.span.file, b.span.line) in rows
    }


def _costs_by_row(session: Session, panes: LinkedPanes) -> dict[str, list[Any]]:
    """Return by source row its recompiles, its share of the kernels' bytes, and both in words."""
    marks, total = line_marks(session)
    return {
        str(row): [mark.recompiles, mark.bytes / total if total else 0, mark.text(total)]
        for file_line, row in panes.row_of_place.items()
        if (mark := marks.get(file_line)) and (mark.recompiles or mark.kernels)
    }
