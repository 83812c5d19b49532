"""Graph view: nodes as columns, edges, origins and passes; and the graph as SVG.

The SVG has a layered layout, computed in linear time. Long edges become pairs of pins.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from html import escape
from typing import Any

from engine.records.bytecode import Span
from engine.records.format_amounts import format_bytes
from engine.records.graph import GraphRecord, NodeRecord, PassRecord
from engine.records.session import CompilationRecord, Session
from engine.records.text_views import node_values_text
from notebook_ext.views import source_lines
from notebook_ext.views.format_text import one_line, sanitize, tensor_type
from notebook_ext.views.graph.graph_between_passes import (
    graph_before_pass,
    intermediate_graph,
    intermediate_graphs,
    is_replayable,
    passes_of,
)

WIDTH, HEIGHT = 168, 34
GAP_X, GAP_Y = 22, 26
LONG_EDGE = 4
"""Number of ranks from which an edge is drawn as two pins with one name."""
MAX_PER_RANK = 8
"""Maximum number of nodes in one row; wider ranks (hundreds of parameters) wrap."""
MAX_GRAPHVIZ_NODES = 150
"""Maximum number of nodes for Graphviz.

Only a linear-time layout is fast enough for larger graphs.
"""
LINE_COLORS = ("#666", "#0b63a5", "#b04500", "#00705a", "#8f3f78", "#735700", "#4b5966")


@dataclass(frozen=True)
class NodeBox:
    """Position of one node in pixels from the top left."""

    node: NodeRecord
    x: int
    y: int
    rank: int


def layered_layout(graph: GraphRecord) -> list[NodeBox]:
    """Return the positions of all nodes.

    The rank of a node is one more than its deepest input's. Within a rank, nodes are ordered by their
    inputs.
    """
    nodes = {n.id: n for n in graph.nodes}
    ranks = _node_depths(graph.nodes, nodes)
    by_rank: dict[int, list[NodeRecord]] = {}
    for node in graph.nodes:
        by_rank.setdefault(ranks[node.id], []).append(node)
    columns: dict[str, float] = {}
    boxes: list[NodeBox] = []
    y = 0
    for rank in sorted(by_rank):
        members = sorted(by_rank[rank], key=lambda n: _preferred_column(n, columns))
        for start in range(0, len(members), MAX_PER_RANK):
            for column, node in enumerate(members[start : start + MAX_PER_RANK]):
                columns[node.id] = column
                boxes.append(NodeBox(node, column * (WIDTH + GAP_X), y, rank))
            y += HEIGHT + GAP_Y
    return boxes


def _node_depths(order: tuple[NodeRecord, ...], nodes: dict[str, NodeRecord]) -> dict[str, int]:
    """Return the depth of each node.

    Graph inputs move down to just above their first reader, so that parameters are close to their use.
    """
    ranks: dict[str, int] = {}
    first_reader: dict[str, int] = {}
    for node in order:
        ranks[node.id] = 1 + max(
            (ranks.get(i, 0) for i in node.inputs if i in nodes and nodes[i].op not in ("placeholder", "get_attr")),
            default=0,
        )
        for i in node.inputs:
            first_reader[i] = min(first_reader.get(i, ranks[node.id]), ranks[node.id])
    for node in order:
        if node.op in ("placeholder", "get_attr"):
            ranks[node.id] = max(0, first_reader.get(node.id, 1) - 1)
    return ranks


def _preferred_column(node: NodeRecord, columns: dict[str, float]) -> float:
    input_columns = [columns[i] for i in node.inputs if i in columns]
    return sum(input_columns) / len(input_columns) if input_columns else float(MAX_PER_RANK)


def graph(session: Session, compilation: str, stage: str = "") -> dict[str, Any]:
    """Return one graph of a compilation; ``stages`` names all of them.

    The front end computes the layout, because calls in the graph open and close. ``is_small``: Graphviz can
    lay it out (``layout``). ``nodes`` are columns; repeated texts are indices into ``strings``. ``edges``
    are pairs of node numbers. ``before`` is the graph that this one was created from, as names and texts;
    ``origins`` are the numbers of each node's origins in it. ``passes`` are the rewrites of the graph.

    Raises:
        KeyError: there is no such compilation.
    """
    record = session.compilation(compilation)
    stages = [g.stage for g in record.graphs]
    chosen = graph_at(record, stage)
    result: dict[str, Any] = {"compilation": record.id, "stage": chosen.stage if chosen else stage, "stages": stages}
    result |= {"snapshots": [[s.stage, s.label] for s in intermediate_graphs(record)]}
    if chosen is None or not chosen.nodes:
        why = (
            "Only the text of this graph was recorded."
            if chosen is not None and chosen.text
            else "This compilation has no graph."
        )
        return result | {
            "nodes": {},
            "count": 0,
            "is_small": False,
            "edges": [],
            "strings": [],
            "before": None,
            "origins": [],
            "passes": [],
            "empty": why,
        }
    index = {n.id: i for i, n in enumerate(chosen.nodes)}
    before, origins = _origin_rows(record, chosen)
    between = next((s for s in intermediate_graphs(record) if s.stage == chosen.stage), None)
    passes = () if between else passes_of(record, chosen)
    return result | {
        **_column_data(session, record, chosen),
        "count": len(chosen.nodes),
        "is_small": len(chosen.nodes) <= MAX_GRAPHVIZ_NODES,
        "edges": [[index[i], to] for to, n in enumerate(chosen.nodes) for i in dict.fromkeys(n.inputs) if i in index],
        "before": None
        if before is None
        else {
            "stage": before.stage,
            "texts": [node_line(n) for n in before.nodes],
            "is_input": [n.op in INPUT_OPS for n in before.nodes],
        },
        "origins": origins,
        "passes": [_pass_data(chosen, number, p) for number, p in enumerate(passes, 1)],
        "empty": "",
    }


def graph_at(record: CompilationRecord, stage: str) -> GraphRecord | None:
    """Return the graph of a stage or between two passes; the first graph if there is none."""
    graph = next((g for g in record.graphs if g.stage == stage), None)
    between = intermediate_graph(record, stage) if graph is None else None
    return graph or between or (record.graphs[0] if record.graphs else None)


def _pass_data(graph: GraphRecord, number: int, record: PassRecord) -> dict[str, Any]:
    """Return a pass as a diff of node lines.

    ``intermediate_graph`` is the stage name of the graph after the pass.
    """
    return {
        "snapshot": f"{graph.stage}@{number}" if is_replayable(record) else "",
        "name": one_line(record.name, 40),
        "before": record.nodes_before,
        "after": record.nodes_after,
        "removed": [one_line(line, 200) for line in record.removed],
        "added": [one_line(line, 200) for line in record.added],
        "by": "you" if record.is_user else "",
        "failure": one_line(record.failure, 300),
        "cut": record.removed_count + record.added_count - len(record.removed) - len(record.added),
    }


def node_line(node: NodeRecord) -> str:
    """Return a node as one line with its type as a comment."""
    kind = tensor_type(node.dtype, node.shape)
    return one_line(node.text, 300) + (f"  # {kind}" if kind else "")


def _origin_rows(record: CompilationRecord, chosen: GraphRecord) -> tuple[GraphRecord | None, list[list[int]]]:
    """Return the graph with most origins of this graph's nodes, and each node's origins in it."""
    wanted = {o for n in chosen.nodes for o in n.origins}
    if not wanted:
        return None, []
    others = [g for g in record.graphs if g is not chosen]
    if (earlier := graph_before_pass(record, chosen.stage)) is not None:
        others = [earlier]
    before = max(others, key=lambda g: sum(n.id in wanted for n in g.nodes), default=None)
    index = {n.id: i for i, n in enumerate(before.nodes)} if before else {}
    if before is None or not wanted & set(index):
        return None, []
    same = {(n.op, n.name): i for i, n in enumerate(before.nodes) if n.op in (*INPUT_OPS, "output")}
    origins = [{index[o] for o in n.origins if o in index} for n in chosen.nodes]
    for node, node_origins in zip(chosen.nodes, origins, strict=True):
        if not node_origins and (node.op, node.name) in same:
            node_origins.add(same[node.op, node.name])  # Inputs and outputs have the same names in all graphs.
    return before, [sorted(node_origins) for node_origins in origins]


def _edge_rows(boxes: list[NodeBox], index: dict[str, int]) -> tuple[list[list[int]], list[list[int]]]:
    edges: list[list[int]] = []
    pins: list[list[int]] = []
    for i, box in enumerate(boxes):
        for source in dict.fromkeys(box.node.inputs):
            if source in index:
                j = index[source]
                (pins if box.rank - boxes[j].rank >= LONG_EDGE else edges).append([j, i])
    return edges, pins


def _column_data(session: Session, record: CompilationRecord, chosen: GraphRecord) -> dict[str, Any]:
    numbers = source_lines.ordinals(session, record)
    files = {f.id for f in session.files}
    kernel_of = {node: k.id for k in record.kernels for node in k.fused_nodes}
    strings: dict[str, int] = {"": 0}

    def number(text: str) -> int:
        return strings.setdefault(text, len(strings))

    @functools.cache
    def short(text: str, limit: int) -> int:
        return number(one_line(text, limit))

    @functools.cache
    def type_and_size(dtype: str, shape: tuple[str, ...] | None, size: int | None) -> tuple[int, int]:
        return number(tensor_type(dtype, shape)), number(format_bytes(size))

    @functools.cache
    def place(span: Span | None) -> tuple[int, int, int]:
        text = number(sanitize(source_lines.source_line(session, span)))
        return text, span.line if span else 0, numbers.of(span)

    places = [place(source_lines.node_spans(node, files).span) for node in chosen.nodes]
    sizes = [type_and_size(node.dtype, node.shape, node.bytes) for node in chosen.nodes]
    nodes = {
        "name": [one_line(node.name, 60) for node in chosen.nodes],
        "text": [one_line(node.text, 300) for node in chosen.nodes],
        "op": [number(node.op) for node in chosen.nodes],
        "target": [short(node.target, 80) for node in chosen.nodes],
        "type": [kind for kind, _ in sizes],
        "bytes": [size for _, size in sizes],
        "path": [number(".".join(call_path(node))) for node in chosen.nodes],
        "kernel": [number(kernel_of.get(node.id, "")) for node in chosen.nodes],
        "source": [text for text, _, _ in places],
        "note": [short(node.note, 120) for node in chosen.nodes],
        "placed": [short(", ".join(node.placements), 80) if node.placements else 0 for node in chosen.nodes],
        "line": [line for _, line, _ in places],
        "ordinal": [ordinal for _, _, ordinal in places],
    }
    return {"nodes": nodes, "strings": list(strings), "values": node_values(record, chosen)}


def node_values(record: CompilationRecord, chosen: GraphRecord) -> dict[int, dict[str, Any]]:
    """Return the recorded values by node number.

    A node of an earlier graph has those of the last ATen node that comes from it.
    """
    recorded = {v.node: v for passage in record.call_values for v in passage.nodes}
    if not recorded:
        return {}
    later = {origin: recorded[n.id] for g in record.graphs for n in g.nodes if n.id in recorded for origin in n.origins}
    values = {number: recorded.get(n.id) or later.get(n.id) for number, n in enumerate(chosen.nodes)}
    return {
        number: {
            "text": node_values_text(v).partition(": ")[2],
            "bad": "NaN" if v.nans else "inf" if v.infinities else "",
            "histogram": list(v.histogram),
            "low": v.low,
            "high": v.high,
            "heat_map": list(v.heat_map),
        }
        for number, v in values.items()
        if v is not None
    }


INPUT_OPS = ("placeholder", "get_attr")


def call_path(node: NodeRecord) -> list[str]:
    """Return the calls that contain a node: its modules, else the inlined call.

    An inlined call is named by its outermost line.
    """
    if node.module:
        return [one_line(part, 40) for part in node.module.split(".")]
    return [f"inlined at line {node.stack[0].line}"] if len(node.stack) > 1 else []


def graph_svg(session: Session, compilation: CompilationRecord, record: GraphRecord, limit: int = 120) -> str:
    """Return the graph as SVG on a light background.

    It draws at most ``limit`` nodes; a last line counts the rest.
    """
    boxes = sorted(layered_layout(record), key=lambda b: (b.y, b.x))
    shown = boxes[:limit]
    index = {b.node.id: i for i, b in enumerate(shown)}
    numbers = source_lines.ordinals(session, compilation)
    files = {f.id for f in session.files}
    edges, pins = _edge_rows(shown, index)
    width = max(b.x for b in shown) + WIDTH + 16
    height = max(b.y for b in shown) + HEIGHT + 16 + (18 if len(boxes) > limit else 0)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="-8 -8 {width} {height}" width="{width}" height="{height}" font-family="sans-serif" font-size="11">',
        f'<rect x="-8" y="-8" width="{width}" height="{height}" fill="#ffffff"/>',
    ]
    parts.extend(f'<path d="{_curve_path(shown[j], shown[i])}" fill="none" stroke="#757575"/>' for j, i in edges)
    for number, (j, i) in enumerate(pins, 1):
        parts.append(_pin_svg(shown[j].x + WIDTH - 30, shown[j].y + HEIGHT, number))
        parts.append(_pin_svg(shown[i].x + WIDTH - 30, shown[i].y - 12, number))
    parts.extend(_node_svg(box, numbers.of(source_lines.node_spans(box.node, files).span)) for box in shown)
    if len(boxes) > limit:
        parts.append(f'<text x="0" y="{height - 14}" fill="#424242">{len(boxes) - limit} more nodes not drawn</text>')
    return "".join([*parts, "</svg>"])


def _curve_path(a: NodeBox, b: NodeBox) -> str:
    x1, y1, x2, y2 = a.x + WIDTH // 2, a.y + HEIGHT, b.x + WIDTH // 2, b.y
    if y2 <= y1:
        return f"M{a.x + WIDTH} {a.y + HEIGHT // 2}L{b.x} {b.y + HEIGHT // 2}"
    middle = (y1 + y2) // 2
    return f"M{x1} {y1}C{x1} {middle} {x2} {middle} {x2} {y2}"


def _pin_svg(x: int, y: int, number: int) -> str:
    return f'<rect x="{x}" y="{y}" width="28" height="12" rx="6" fill="#ffffff" stroke="#757575"/><text x="{x + 14}" y="{y + 9}" font-size="9" text-anchor="middle" fill="#212121">P{number}</text>'


def _node_svg(box: NodeBox, ordinal: int) -> str:
    hue = LINE_COLORS[(ordinal - 1) % 6 + 1] if ordinal else LINE_COLORS[0]
    fill = "#f3f3f3" if box.node.op in ("placeholder", "get_attr", "output") else "#ffffff"
    badge = (
        f'<rect x="{box.x + 5}" y="{box.y + 4}" width="16" height="13" rx="2" fill="{hue}"/><text x="{box.x + 13}" y="{box.y + 14}" font-size="9" font-weight="bold" text-anchor="middle" fill="#ffffff">{ordinal}</text>'
        if ordinal
        else ""
    )
    left = box.x + (26 if ordinal else 7)
    return (
        f'<rect x="{box.x}" y="{box.y}" width="{WIDTH}" height="{HEIGHT}" rx="2" fill="{fill}" stroke="#9e9e9e"/>{badge}'
        f'<text x="{left}" y="{box.y + 14}" font-weight="bold" fill="#212121">{escape(one_line(box.node.name, 20))}</text>'
        f'<text x="{box.x + 7}" y="{box.y + 28}" font-family="monospace" font-size="10" fill="#555555">{escape(one_line(tensor_type(box.node.dtype, box.node.shape), 25))}</text>'
    )
