"""Tables of the static snapshot, one for each stage.

They show source lines, AOT wrappers, the partition, fusion, tracer steps and captured backwards.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

from engine.records.format_amounts import format_bytes
from engine.records.session import CompilationRecord, Session
from notebook_ext.views import source_lines
from notebook_ext.views.aot_wrappers import aot_wrappers
from notebook_ext.views.backward import backward
from notebook_ext.views.format_text import one_line, pluralize
from notebook_ext.views.graph.graph_between_passes import passes_of
from notebook_ext.views.kernels import autotune_choices, kernels

Table = tuple[str, list[str], list[list[str]]]
"""Title, headings, rows."""


def line_tables(session: Session, compilation: CompilationRecord) -> list[Table]:
    """Return the first tables of a compilation: its source lines and its AOT wrappers."""
    return _with_entry(session, compilation, [_line_table(session, compilation), _wrapper_table(session, compilation)])


def detail_tables(session: Session, compilation: CompilationRecord) -> list[Table]:
    """Return the tables of the remaining stages of a compilation."""
    tables = [
        _graph_table(compilation),
        _partition_table(session, compilation),
        _wrapper_values(session, compilation),
        _memory_table(compilation),
        _fusion_table(session, compilation),
        _choice_table(compilation),
        _step_table(compilation),
    ]
    return _with_entry(session, compilation, tables)


def _with_entry(session: Session, compilation: CompilationRecord, tables: list[Table]) -> list[Table]:
    name = source_lines.full_name(session, compilation)
    return [(f"{title}, {name}", heads, rows) for title, heads, rows in tables]


def backward_table(session: Session) -> Table:
    """Return the table of captured backwards, each with its cause."""
    view = backward(session)
    rows = [[c["id"], c["facts"].rpartition(", captured in ")[0], c["cause"]] for c in view["captures"]]
    return "Captured backwards", ["Capture", "Contents", "Reason"], rows


def _line_table(session: Session, compilation: CompilationRecord) -> Table:
    """Return the nodes of each graph and the kernels that come from each source line."""
    ordinals = source_lines.ordinals(session, compilation)
    files = {f.id for f in session.files}
    counts: dict[int, Counter[str]] = {}
    for graph in compilation.graphs:
        for node in graph.nodes:
            if ordinal := ordinals.of(source_lines.node_spans(node, files).span):
                counts.setdefault(ordinal, Counter())[graph.stage] += 1
    of_line: dict[int, list[str]] = {}
    for row in kernels(session)["rows"]:
        if row["compilation"] == compilation.id:
            for ordinal in row["ordinals"]:
                of_line.setdefault(ordinal, []).append(row["kernel"])
    rows = [
        [
            str(ordinal),
            f"{line} {one_line(source_lines.line_text(session, file, line), 70)}",
            ", ".join(f"{stage} {count}" for stage, count in counts.get(ordinal, Counter()).items()),
            ", ".join(of_line.get(ordinal, [])),
        ]
        for (file, line), ordinal in sorted(ordinals.numbers.items(), key=lambda item: item[1])
    ]
    return "Source lines with their nodes and kernels", ["#", "Line", "Nodes by graph", "Kernels"], rows


def _wrapper_table(session: Session, compilation: CompilationRecord) -> Table:
    view = aot_wrappers(session, compilation.id)
    rows = [
        [ring["name"], "in" if a["direction"] == "in" else "out", a["argument"], a["action"], a["why"]]
        for ring in view.get("rings", ())
        for a in ring["actions"]
    ]
    return "AOT runtime wrappers", ["Wrapper", "Direction", "Value", "Action", "Reason"], rows


def _partition_table(session: Session, compilation: CompilationRecord) -> Table:
    partition: dict[str, Any] | None = aot_wrappers(session, compilation.id).get("partition")
    rows = [[v["name"], v["action"], v["bytes"], v["reason"]] for v in partition["rows"]] if partition else []
    return "Saved for backward", ["Value", "Saved or recomputed", "Bytes", "Reason"], rows


def _wrapper_values(session: Session, compilation: CompilationRecord) -> Table:
    """Return the values of small tensors at the wrappers, for the last recorded call."""
    passages = aot_wrappers(session, compilation.id).get("passages") or [{"moments": []}]
    rows = [[m["ring"], m["direction"], name, text] for m in passages[-1]["moments"] for name, text in m["values"]]
    return "Values of small tensors at the wrappers", ["Wrapper", "Direction", "Value", "Contents"], rows


def _graph_table(compilation: CompilationRecord) -> Table:
    rows = []
    for graph in compilation.graphs:
        passes = [
            f"{p.name} {f'undone: {p.failure}' if p.failure else f'{p.nodes_before} → {p.nodes_after}'}"
            for p in passes_of(compilation, graph)
            if p.removed_count or p.added_count or p.failure
        ]
        rows.append([one_line(graph.stage, 30), pluralize(len(graph.nodes), "node"), one_line(", ".join(passes), 200)])
    return "Graphs", ["Stage", "Size", "Passes that changed it"], rows if len(rows) > 1 else []


def _memory_table(compilation: CompilationRecord) -> Table:
    """Return the peak of each program and the largest tensors that are live at it."""
    rows = [
        [
            record.stage,
            format_bytes(record.peak_bytes),
            f"{record.peak_step + 1} of {len(record.steps)}, {one_line(record.steps[record.peak_step].name, 60)}",
            ", ".join(
                f"{one_line(b.name, 40)} {format_bytes(b.bytes)}" for b in record.live_blocks(record.peak_step)[:5]
            ),
        ]
        for record in compilation.memory
        if record.steps
    ]
    return "Live memory at its peak", ["Program", "Peak", "Step", "Largest tensors"], rows


def _fusion_table(session: Session, compilation: CompilationRecord) -> Table:
    rows = [
        ["fused" if d["fused"] else "not fused", _fused_names(d["first"], d["second"]), d["reason"], d["saved"]]
        for d in kernels(session)["decisions"]
        if d["compilation"] == compilation.id
    ]
    # Programs for the GPU and the CPU often have the same decisions.
    return "Fusion decisions", ["", "Nodes", "Reason", "Saves"], [list(row) for row in dict.fromkeys(map(tuple, rows))]


def _fused_names(first: list[str], second: list[str]) -> str:
    others = ", ".join(name for name in second if name not in first)
    return ", ".join(first) + (f" with {others}" if others else "")


def _choice_table(compilation: CompilationRecord) -> Table:
    rows = [
        [one_line(kernel.id, 20), c["taken"], c["reason"], "; ".join(c["ways"])]
        for kernel in {k.id: k for k in compilation.kernels}.values()
        for c in autotune_choices(compilation, kernel)
    ]
    return "Autotuning", ["Kernel", "Chosen", "Reason", "Measured times"], rows


def _step_table(compilation: CompilationRecord) -> Table:
    """Return the tracer steps that added something, if steps were recorded."""
    rows = [
        [
            str(step.index + 1),
            str(step.span.line) if step.span else "",
            one_line(f"{step.opname} {step.argument}", 40),
            one_line(
                ", ".join((*step.nodes, *step.side_effects, *([step.event] if step.event == "break" else []))), 80
            ),
        ]
        for step in (compilation.trace.steps if compilation.trace else ())
        if step.nodes or step.side_effects or step.event == "break"
    ]
    return "Tracer steps that added to the graph", ["Step", "Line", "Instruction", "Added"], rows
