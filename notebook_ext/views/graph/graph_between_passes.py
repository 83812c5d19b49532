"""A graph as it stood between two passes over it, made again from the edits that each pass was recorded with."""

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
    """Where a graph stood: ``stage`` names it as the explorer does ("joint@2": after the second pass), ``words`` as a person does."""

    stage: str
    label: str
    number: int


def passes_of(record: CompilationRecord, graph: GraphRecord) -> tuple[PassRecord, ...]:
    """The passes that made a graph what it is, then those of lowering over it."""
    lowering = {"aten": record.lowering, "forward": record.lowering, "backward": record.backward_lowering}.get(
        graph.stage
    )
    return (*graph.passes, *(lowering.passes if lowering else ()))


def is_replayable(told: PassRecord) -> bool:
    """Whether the graphs around a pass can be shown: it changed something, and every edit was recorded."""
    return told.has_exact_edits and bool(told.edits)


def intermediate_graphs(record: CompilationRecord) -> list[IntermediateGraph]:
    """The graphs around each pass that changed something, in order: before the first of a row of passes, and after each."""
    found = []
    for graph in record.graphs:
        passes = passes_of(record, graph)
        for number, told in enumerate(passes, 1):
            if not is_replayable(told):
                continue
            if number == 1 or not is_replayable(passes[number - 2]):
                found.append(
                    IntermediateGraph(
                        f"{graph.stage}@{number - 1}", one_line(f"{graph.stage} before {told.name}", 60), number - 1
                    )
                )
            found.append(
                IntermediateGraph(f"{graph.stage}@{number}", one_line(f"{graph.stage} after {told.name}", 60), number)
            )
    return found


def intermediate_graph(record: CompilationRecord, stage: str) -> GraphRecord | None:
    """The graph that a snapshot's stage names; None where there is none. Each node's origins are what it was before the last pass."""
    base, _, number = stage.partition("@")
    graph = next((g for g in record.graphs if g.stage == base), None)
    if graph is None or not any(s.stage == stage for s in intermediate_graphs(record)):
        return None
    passes, count = passes_of(record, graph), int(number)
    lines = lines_after_passes(passes, count)
    nodes = nodes_from_lines(lines, stage, _known(record))
    last = passes[count - 1] if count else None
    if last is not None and is_replayable(last):
        nodes = _with_origins(
            nodes, nodes_from_lines(lines_after_passes(passes, count - 1), f"{base}@{count - 1}", {}), last.edits
        )
    words = next(s.label for s in intermediate_graphs(record) if s.stage == stage)
    return GraphRecord(f"{stage}:{record.id}", stage, words, nodes)


def graph_before_pass(record: CompilationRecord, stage: str) -> GraphRecord | None:
    """The graph that the pass before a snapshot was run over; None for a first one, and for what is no snapshot."""
    base, _, number = stage.partition("@")
    return intermediate_graph(record, f"{base}@{int(number) - 1}") if number.isdecimal() and int(number) else None


@functools.lru_cache(maxsize=16)
def lines_after_passes(passes: tuple[PassRecord, ...], count: int) -> tuple[str, ...]:
    """The graph after ``count`` passes, a line a node. The edits up to there are exact where ``has_exact_edits`` says so."""
    if count < len(passes) and passes[count].lines_before:
        return passes[count].lines_before
    if not count:
        return ()
    return apply_edits(lines_after_passes(passes, count - 1), passes[count - 1].edits)


def apply_edits(lines: Sequence[str], edits: Sequence[EditRecord]) -> tuple[str, ...]:
    """Lines with edits done from the top down."""
    found = list(lines)
    for edit in edits:
        found[edit.line : edit.line + edit.removed_count] = edit.added_lines
    return tuple(found)


def _known(record: CompilationRecord) -> dict[str, NodeRecord]:
    """What is known of nodes by their text: types, places and modules, of whichever stage has the same statement."""
    return {n.text: n for g in reversed(record.graphs) for n in g.nodes}


def nodes_from_lines(lines: Sequence[str], stage: str, known: dict[str, NodeRecord]) -> tuple[NodeRecord, ...]:
    """Nodes from their lines: what each reads is told by the names in it; the rest is taken from an equal statement elsewhere."""
    seen: dict[str, str] = {}
    nodes = []
    for number, line in enumerate(lines):
        op, name, rest = _split_line(line, number)
        read = tuple(dict.fromkeys(seen[w] for w in _WORD.findall(_QUOTED.sub("", rest)) if w in seen))
        target = known[line].target if line in known else rest.partition("(")[0][:80] if "(" in rest else ""
        node = NodeRecord(f"{stage}:{name}", name, op, target, line, inputs=read)
        if line in known:
            twin = known[line]
            node = replace(
                node,
                **{key: getattr(twin, key) for key in ("shape", "stride", "dtype", "device", "bytes", "span", "stack")},
                module=twin.module,
            )
        nodes.append(node)
        seen[name] = node.id
    return tuple(nodes)


def _split_line(line: str, number: int) -> tuple[str, str, str]:
    """A line's operation, name and what it computes."""
    if line.isidentifier():
        return "placeholder", line, ""
    if line.startswith("return "):
        return "output", "output", line.removeprefix("return ")
    found = _STATEMENT.fullmatch(line)
    if found is None:
        return "call_function", f"statement_{number + 1}", line
    return ("get_attr" if re.fullmatch(r"self\.\w+", found[2]) else "call_function"), found[1], found[2]


def _with_origins(
    nodes: tuple[NodeRecord, ...], before: tuple[NodeRecord, ...], edits: Sequence[EditRecord]
) -> tuple[NodeRecord, ...]:
    """Origins by edit: what an edit made comes of what it took away, by name where the name stayed; all else is as it was."""
    origins: list[tuple[str, ...]] = [(n.id,) for n in before]
    for edit in edits:
        gone = origins[edit.line : edit.line + edit.removed_count]
        names = {i.rpartition(":")[2]: i for group in gone for i in group}
        everything = tuple(dict.fromkeys(i for group in gone for i in group))
        made = [
            (names[n.name],) if n.name in names else everything
            for n in nodes[edit.line : edit.line + len(edit.added_lines)]
        ]
        origins[edit.line : edit.line + edit.removed_count] = made
    return tuple(replace(n, origins=found) for n, found in zip(nodes, origins, strict=True))
