"""View of captured backwards: autograd's nodes, the captured graph and the compiled graph.

Each row lists the rows that it comes from.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

from engine.records.autograd import BackwardRecord
from engine.records.format_amounts import format_seconds
from engine.records.graph import GraphRecord, NodeRecord
from engine.records.session import Session
from notebook_ext.views.format_text import one_line, pluralize, sanitize, tensor_type

MAX_ROWS = 3_000
"""Maximum number of rows in one pane; the rest is counted."""
MAX_CALLS = 200
"""Maximum number of listed backward calls; the latest are shown."""


def backward(session: Session) -> dict[str, Any]:
    """Return every capture with its three panes, and every backward that ran.

    ``empty`` says why there is nothing to show. A row of a pane is ``[text, note, rows]``; ``rows`` are the
    numbers of rows in the previous pane that it comes from.
    """
    captures = [_capture_data(session, b) for b in session.backwards]
    calls = session.backward_calls
    return {
        "empty": "" if calls else _WHY_EMPTY,
        "captures": captures,
        "calls": [
            {
                "index": c.index,
                "outcome": sanitize(c.outcome),
                "capture": sanitize(c.backward),
                "reason": one_line(c.reason, 300),
            }
            for c in calls[-MAX_CALLS:]
        ],
        "dropped": max(0, len(calls) - MAX_CALLS),
        "text": _counts_text(session),
    }


_WHY_EMPTY = "No backward was captured: run it under engine.compiled_autograd()."


def _counts_text(session: Session) -> str:
    outcome_counts = Counter(c.outcome for c in session.backward_calls)
    words = {"captured": "captured", "hit": "cache hit", "eager": "run by autograd's engine"}
    outcomes = ", ".join(f"{outcome_counts[k]} {word}" for k, word in words.items() if outcome_counts[k])
    return f"{pluralize(sum(outcome_counts.values()), 'backward')}: {outcomes}"


def _facts_text(record: BackwardRecord) -> str:
    hooks = sum(len(n.hooks) for n in record.nodes)
    parts = [pluralize(len(record.nodes), "autograd node"), pluralize(record.inputs, "tensor")]
    parts += [pluralize(record.symbolic_sizes, "symbolic size")] if record.symbolic_sizes else []
    parts += [pluralize(hooks, "hook")] if hooks else []
    return f"{', '.join(parts)}, captured in {format_seconds(record.seconds)}"


def _capture_data(session: Session, record: BackwardRecord) -> dict[str, Any]:
    eager, rows_of_eager = _autograd_rows(record)
    captured, rows_of_captured = _graph_rows(record, rows_of_eager)
    compiled, entry = _compiled_graph_rows(session, record, rows_of_captured)
    return {
        "id": sanitize(record.id),
        "facts": _facts_text(record),
        "backend": sanitize(record.backend),
        "cause": one_line(record.cause.sentence, 300),
        "nearest": sanitize(record.cause.nearest),
        "details": [one_line(d, 200) for d in record.cause.details],
        "notes": [one_line(n, 300) for n in record.notes],
        "entry": entry,
        "panes": [
            _pane_data("eager", "Autograd nodes, in eager order", eager, "No node was recorded."),
            _pane_data("captured", "Captured graph", captured, "No graph was recorded."),
            _pane_data("compiled", "Compiled graph", compiled, _why_not_compiled(record)),
        ],
    }


def _pane_data(id: str, title: str, rows: list[list[Any]], empty: str) -> dict[str, Any]:
    return {
        "id": id,
        "title": title,
        "rows": rows[:MAX_ROWS],
        "cut": max(0, len(rows) - MAX_ROWS),
        "empty": "" if rows else empty,
    }


def _why_not_compiled(record: BackwardRecord) -> str:
    if record.backend == "eager":
        return 'Backend "eager" runs the captured graph operator by operator.'
    return "It was not compiled while the session recorded."


def _autograd_rows(record: BackwardRecord) -> tuple[list[list[Any]], dict[str, int]]:
    """Return the rows of autograd's nodes, and the row of each node of the captured graph."""
    nodes = sorted(record.nodes, key=lambda n: n.position)
    row_numbers = {n.id: k for k, n in enumerate(nodes)}
    rows: list[list[Any]] = []
    became: dict[str, int] = {}
    for row, node in enumerate(nodes):
        to = ", ".join(
            f"{row_numbers[t]} {one_line(nodes[row_numbers[t]].name, 40)}" for t in node.next if t in row_numbers
        )
        hooks = f"hooks: {', '.join(map(sanitize, node.hooks))}" if node.hooks else ""
        rows.append([f"{row} {one_line(node.name, 60)}" + (f" → {to}" if to else ""), hooks, []])
        became |= dict.fromkeys(node.captured, row)
    return rows, became


def _graph_rows(record: BackwardRecord, became: dict[str, int]) -> tuple[list[list[Any]], dict[str, int]]:
    graph = next((g for g in record.graphs if g.stage == "captured"), None)
    nodes = graph.nodes if graph else ()
    rows = [
        [one_line(n.text, 160), _type_text(n) or sanitize(n.note), [became[n.id]] if n.id in became else []]
        for n in nodes
    ]
    return rows, {n.id: k for k, n in enumerate(nodes)}


def _compiled_graph_rows(
    session: Session, record: BackwardRecord, row_numbers: dict[str, int]
) -> tuple[list[list[Any]], str]:
    """Return the rows of the compiled graphs, and the first compilation for the other views."""
    rows: list[list[Any]] = []
    entry = ""
    for compilation in session.compilations:
        if compilation.frame != record.id or not compilation.graphs:
            continue
        entry = entry or compilation.id
        rows.append([f"# {one_line(compilation.cause, 100)}, backend {sanitize(compilation.backend)}", "", []])
        traced, final = compilation.graphs[0], compilation.graphs[-1]
        origins = {n.id: n.origins for n in traced.nodes}
        rows += [
            [one_line(n.text, 160), _type_text(n), _captured_rows(n, final, origins, row_numbers)] for n in final.nodes
        ]
    return rows, sanitize(entry)


def _captured_rows(
    node: NodeRecord, graph: GraphRecord, origins: dict[str, tuple[str, ...]], row_numbers: dict[str, int]
) -> list[int]:
    """Return the rows of the captured graph that a node comes from, through the traced graph."""
    through = (node.id,) if graph.stage == "fx" else node.origins
    rows = dict.fromkeys(row_numbers[o] for t in through for o in origins.get(t, ()) if o in row_numbers)
    return list(rows)


def _type_text(node: NodeRecord) -> str:
    return tensor_type(node.dtype, node.shape) if node.dtype else ""
