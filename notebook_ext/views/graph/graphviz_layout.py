"""Lays out a small graph with Graphviz, if it is installed; calls are clusters."""

from __future__ import annotations

import functools
import pathlib
import shutil
import subprocess
import sys
from typing import Any

from engine.records.graph import GraphRecord, NodeRecord
from engine.records.session import Session
from notebook_ext.views.format_text import one_line
from notebook_ext.views.graph.node_table import HEIGHT, INPUT_OPS, MAX_GRAPHVIZ_NODES, WIDTH, call_path, graph_at

TIMEOUT_SECONDS = 20.0
DOTS_PER_INCH = 72
PROGRAMS = ("dot", "graphviz-pure")
"""Names of layout programs: Graphviz, else its port as a Python package."""
MISSING_MESSAGE = (
    "Graphviz is not installed, so the built-in layout is used. Install it with pip install graphviz-pure, or with "
    "your system's graphviz package."
)


def graphviz_layout(session: Session, compilation: str, stage: str = "") -> dict[str, Any]:
    """Return Graphviz's positions in pixels, or a ``problem``.

    ``nodes`` are [x, y] of the top left corner, ``edges`` are [from, to, path].

    Raises:
        KeyError: there is no such graph.
    """
    chosen = graph_at(session.compilation(compilation), stage)
    if chosen is None:
        raise KeyError(stage)
    if not 0 < len(chosen.nodes) <= MAX_GRAPHVIZ_NODES:
        return no_layout(
            f"Graphviz lays out graphs of up to {MAX_GRAPHVIZ_NODES} nodes here; this one has {len(chosen.nodes)}."
        )
    program = find_graphviz()
    if program is None:
        return no_layout(MISSING_MESSAGE)
    try:
        return _parse_layout(_run_graphviz(program, dot_source(chosen)), len(chosen.nodes))
    except subprocess.TimeoutExpired:
        return no_layout(
            f"Graphviz took longer than {TIMEOUT_SECONDS:.0f} s for this graph, so the built-in layout is used."
        )
    except (subprocess.CalledProcessError, OSError, ValueError) as error:
        reason = one_line(str(getattr(error, "stderr", "") or error), 160)
        return no_layout(f"Graphviz failed, so the built-in layout is used: {reason}")


def no_layout(problem: str) -> dict[str, Any]:
    """Return a layout without nodes, and why Graphviz computed none."""
    return {"nodes": [], "edges": [], "width": 0, "height": 0, "problem": problem}


def find_graphviz() -> str | None:
    """Return the layout program from PATH or from the folder of this Python."""
    beside = str(pathlib.Path(sys.executable).parent)
    return next(
        (program for name in PROGRAMS if (program := shutil.which(name) or shutil.which(name, path=beside))), None
    )


def dot_source(record: GraphRecord) -> str:
    """Return the graph in the DOT language: numbered nodes, calls as nested clusters."""
    import graphviz

    nodes = record.nodes
    index = {n.id: i for i, n in enumerate(nodes)}
    edges = [(index[i], to) for to, n in enumerate(nodes) for i in dict.fromkeys(n.inputs) if i in index]
    size = {"width": f"{WIDTH / DOTS_PER_INCH:.4f}", "height": f"{HEIGHT / DOTS_PER_INCH:.4f}"}
    whole = graphviz.Digraph(
        graph_attr={"ranksep": "0.4", "nodesep": "0.3"},
        edge_attr={"arrowhead": "none"},
        node_attr={"shape": "box", "fixedsize": "true", "label": "", **size},
    )
    parents, labels, inside = _nested_calls(nodes, edges)
    clusters = [
        graphviz.Digraph(f"cluster_{i}", graph_attr={"label": graphviz.escape(label[:24]), "margin": "14"})
        for i, label in enumerate(labels)
    ]
    for i, call in enumerate(inside):
        (whole if call < 0 else clusters[call]).node(f"n{i}")
    for i in reversed(
        range(len(clusters))
    ):  # Add inner clusters first: an inner call has a higher number than the call around it.
        (whole if parents[i] < 0 else clusters[parents[i]]).subgraph(clusters[i])
    whole.edges((f"n{a}", f"n{b}") for a, b in edges)
    text: str = whole.source
    return text


def _nested_calls(
    nodes: tuple[NodeRecord, ...], edges: list[tuple[int, int]]
) -> tuple[list[int], list[str], list[int]]:
    """Return the calls as runs of nodes, nested as in the front end.

    The result is each call's parent, each call's label, and each node's call; -1 for none.
    """
    parents: list[int] = []
    labels: list[str] = []
    inside = [-1] * len(nodes)
    opened: list[tuple[str, int]] = []
    for i, node in enumerate(nodes):
        if node.op in INPUT_OPS:
            continue
        path = call_path(node)
        shared = 0
        while shared < min(len(opened), len(path)) and opened[shared][0] == path[shared]:
            shared += 1
        del opened[shared:]
        for label in path[shared:]:
            parents.append(opened[-1][1] if opened else -1)
            labels.append(label)
            opened.append((label, len(labels) - 1))
        inside[i] = opened[-1][1] if opened else -1
    placed = set()
    for a, b in edges:
        if nodes[a].op in INPUT_OPS and a not in placed:  # An input belongs to the call of its first reader.
            placed.add(a)
            inside[a] = inside[b]
    return parents, labels, inside


@functools.lru_cache(maxsize=64)
def _run_graphviz(program: str, text: str) -> str:
    return subprocess.run(
        [program, "-Tplain"], input=text, capture_output=True, check=True, encoding="utf-8", timeout=TIMEOUT_SECONDS
    ).stdout


def _parse_layout(plain: str, count: int) -> dict[str, Any]:
    """Parse Graphviz's plain output, which is in inches with y upward."""
    nodes: list[list[int]] = [[0, 0] for _ in range(count)]
    edges: list[list[Any]] = []
    width = height = 0.0
    for words in map(str.split, plain.splitlines()):
        if words[0] == "graph":
            width, height = float(words[2]) * DOTS_PER_INCH, float(words[3]) * DOTS_PER_INCH
        elif words[0] == "node":
            x, y = (float(w) * DOTS_PER_INCH for w in words[2:4])
            nodes[int(words[1][1:])] = [round(x - WIDTH / 2), round(height - y - HEIGHT / 2)]
        elif words[0] == "edge":
            numbers = [float(w) * DOTS_PER_INCH for w in words[4 : 4 + 2 * int(words[3])]]
            points = [f"{round(x)} {round(height - y)}" for x, y in zip(numbers[::2], numbers[1::2], strict=True)]
            edges.append([int(words[1][1:]), int(words[2][1:]), f"M{points[0]}C{' '.join(points[1:])}"])
    return {"nodes": nodes, "edges": edges, "width": round(width), "height": round(height), "problem": ""}
