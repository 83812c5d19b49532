"""Rebuilds a graph as it was between two passes, from the recorded edits of each pass."""

from __future__ import annotations

import functools
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace

from engine.records.graph import EditRecord, GraphRecord, NodeRecord, PassRecord
from engine.records.session import CompilationRecord
from notebook_ext.views.format_text import one_line

_STATEMENT = re.compile(r"(\w+) = (.*)", re.DOTALL)
_WORD = re.compile(r"(?<![\w.\"'])([A-Za-z_]\w*)(?!\w|\(|\s*=(?!=))")
_QUOTED = re.compile(r"\"[^\"]*\"|'[^']*'")


@dataclass(frozen=True)
class IntermediateGraph:
    """Identity of an intermediate graph.

    ``stage`` is its key in the explorer ("joint@2": after the second pass), ``label`` its display name.
    """

    stage: str
    label: str
    number: int


def passes_of(record: CompilationRecord, graph: GraphRecord) -> tuple[PassRecord, ...]:
    """Return the passes that created a graph, then the lowering passes over it."""
    lowering = {"aten": record.lowering, "forward": record.lowering, "backward": record.backward_lowering}.get(
        graph.stage
    )
    return (*graph.passes, *(lowering.passes if lowering else ()))


def is_replayable(record: PassRecord) -> bool:
    """Return True if the pass changed something and all of its edits were recorded.

    Only then can the graphs around it be rebuilt.
    """
    return record.has_exact_edits and bool(record.edits)


def intermediate_graphs(record: CompilationRecord) -> list[IntermediateGraph]:
    """Return the graphs around each pass that changed something, in order.

    These are the graph before the first of consecutive passes, and the graph after each pass.
    """
    graphs = []
    for graph in record.graphs:
        passes = passes_of(record, graph)
        for number, step in enumerate(passes, 1):
            if not is_replayable(step):
                continue
            if number == 1 or not is_replayable(passes[number - 2]):
                graphs.append(
                    IntermediateGraph(
                        f"{graph.stage}@{number - 1}", one_line(f"{graph.stage} before {step.name}", 60), number - 1
                    )
                )
            graphs.append(
                IntermediateGraph(f"{graph.stage}@{number}", one_line(f"{graph.stage} after {step.name}", 60), number)
            )
    return graphs


def intermediate_graph(record: CompilationRecord, stage: str) -> GraphRecord | None:
    """Return the intermediate graph of a stage, else None.

    The origins of a node are its nodes before the last pass.
    """
    base, _, number = stage.partition("@")
    graph = next((g for g in record.graphs if g.stage == base), None)
    if graph is None or not any(s.stage == stage for s in intermediate_graphs(record)):
        return None
    passes, count = passes_of(record, graph), int(number)
    lines = lines_after_passes(passes, count)
    nodes = nodes_from_lines(lines, stage, {n.text: n for g in reversed(record.graphs) for n in g.nodes})
    last = passes[count - 1] if count else None
    if last is not None and is_replayable(last):
        nodes = _with_origins(
            nodes, nodes_from_lines(lines_after_passes(passes, count - 1), f"{base}@{count - 1}", {}), last.edits
        )
    words = next(s.label for s in intermediate_graphs(record) if s.stage == stage)
    return GraphRecord(f"{stage}:{record.id}", stage, words, nodes)


def graph_before_pass(record: CompilationRecord, stage: str) -> GraphRecord | None:
    """Return the graph before the last pass of an intermediate graph.

    Return None for the first graph, and for a stage that is not an intermediate graph.
    """
    base, _, number = stage.partition("@")
    return intermediate_graph(record, f"{base}@{int(number) - 1}") if number.isdecimal() and int(number) else None


@functools.lru_cache(maxsize=16)
def lines_after_passes(passes: tuple[PassRecord, ...], count: int) -> tuple[str, ...]:
    """Return the graph after ``count`` passes, one line for each node.

    The result is exact only if ``is_exact`` holds for all edits up to there.
    """
    if count < len(passes) and passes[count].lines_before:
        return passes[count].lines_before
    if not count:
        return ()
    return apply_edits(lines_after_passes(passes, count - 1), passes[count - 1].edits)


def apply_edits(lines: Sequence[str], edits: Sequence[EditRecord]) -> tuple[str, ...]:
    """Return the lines after applying edits from the top down."""
    edited = list(lines)
    for edit in edits:
        edited[edit.line : edit.line + edit.removed_count] = edit.added_lines
    return tuple(edited)


def nodes_from_lines(lines: Sequence[str], stage: str, known: dict[str, NodeRecord]) -> tuple[NodeRecord, ...]:
    """Return nodes from their lines.

    The inputs of a node are the names in its line. Other fields are copied from an equal statement in
    ``known``.
    """
    seen: dict[str, str] = {}
    nodes = []
    for number, line in enumerate(lines):
        op, name, rest = _split_line(line, number)
        read = tuple(dict.fromkeys(seen[w] for w in _WORD.findall(_QUOTED.sub("", rest)) if w in seen))
        target = known[line].target if line in known else rest.partition("(")[0][:80] if "(" in rest else ""
        node = NodeRecord(f"{stage}:{name}", name, op, target, line, inputs=read)
        if line in known:
            known_node = known[line]
            node = replace(
                node,
                **{
                    key: getattr(known_node, key)
                    for key in ("shape", "stride", "dtype", "device", "bytes", "span", "stack")
                },
                module=known_node.module,
            )
        nodes.append(node)
        seen[name] = node.id
    return tuple(nodes)


def _split_line(line: str, number: int) -> tuple[str, str, str]:
    if line.isidentifier():
        return "placeholder", line, ""
    if line.startswith("return "):
        return "output", "output", line.removeprefix("return ")
    match = _STATEMENT.fullmatch(line)
    if match is None:
        return "call_function", f"statement_{number + 1}", line
    return ("get_attr" if re.fullmatch(r"self\.\w+", match[2]) else "call_function"), match[1], match[2]


def _with_origins(
    nodes: tuple[NodeRecord, ...], before: tuple[NodeRecord, ...], edits: Sequence[EditRecord]
) -> tuple[NodeRecord, ...]:
    """Add origins to nodes: each added node comes from the nodes that its edit removed.

    If a removed node has the same name, it is the only origin. Unedited nodes come from themselves.
    """
    origins: list[tuple[str, ...]] = [(n.id,) for n in before]
    for edit in edits:
        gone = origins[edit.line : edit.line + edit.removed_count]
        names = {i.rpartition(":")[2]: i for group in gone for i in group}
        everything = tuple(dict.fromkeys(i for group in gone for i in group))
        new_origins = [
            (names[n.name],) if n.name in names else everything
            for n in nodes[edit.line : edit.line + len(edit.added_lines)]
        ]
        origins[edit.line : edit.line + edit.removed_count] = new_origins
    return tuple(replace(n, origins=node_origins) for n, node_origins in zip(nodes, origins, strict=True))
