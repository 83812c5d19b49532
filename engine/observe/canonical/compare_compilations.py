"""Comparison of the graphs of one function's compilations in two sessions."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import replace

from engine.observe.canonical.graphs import GraphDifference, GraphInputs, compare_graphs, input_name
from engine.records.graph import GraphRecord, NodeRecord
from engine.records.session import CompilationRecord
from engine.records.session_comparison import AspectComparison

MAX_LINES = 200
"""Maximum number of lines that one side shows."""
TRACED = ("fx", "pre-grad")
FUNCTIONAL = ("aten", "joint", "forward", "backward", "decomposed", "autograd")
_NO_OPERATION = ("placeholder", "output", "get_attr")

_NUMBERED = re.compile(r"primals_\d+|arg\d+_1")
"""Inputs as AOTAutograd names them."""
Pairs = list[tuple[CompilationRecord | None, CompilationRecord | None]]


def compare_graph_lists(
    before: tuple[CompilationRecord, ...], after: tuple[CompilationRecord, ...], *, is_one_compiler: bool
) -> AspectComparison:
    """Return the aspect "graphs": operations that only one side has, with the user's lines.

    Graphs are equal if the traced ones are, or if all ATen graphs are. Of two compilers only the traced graphs
    are compared, because each decomposes operators in its own way.
    """
    lines: tuple[list[str], list[str]] = ([], [])
    is_reordered = False
    differing: list[NodeRecord] = []
    for first, second in _pair_compilations(before, after, is_one_compiler):
        if first is None or second is None:
            continue  # the aspect "compilations" shows it
        differences = _compare(first, second, is_one_compiler)
        is_reordered = is_reordered or any(d.is_reordered for d in differences)
        for difference in differences:
            differing += [*difference.second, *difference.first]
            lines[0].extend(map(_node_text, difference.first))
            lines[1].extend(map(_node_text, difference.second))
            if difference.has_other_outputs or difference.has_other_order_of_outputs:
                lines[0].append("the same operations, other results returned")
                lines[1].append("the same operations, other results returned")
    sizes = _size(before), _size(after)
    if not lines[0] and not lines[1]:
        summary = f"{sizes[0]}, in another order" if is_reordered else sizes[0]
        return AspectComparison("graphs", summary, summary, is_reordered=is_reordered)
    line = next((n.span.line for n in differing if n.span is not None), 0)
    return AspectComparison("graphs", *sizes, limit_lines(lines[0]), limit_lines(lines[1]), line=line)


def differing_nodes(first: CompilationRecord, second: CompilationRecord) -> tuple[NodeRecord | None, NodeRecord | None]:
    """Return the first node that each compilation has alone; None if there is none."""
    for difference in _compare(first, second, is_one_compiler=True):
        if difference.first or difference.second:
            return next(iter(difference.first), None), next(iter(difference.second), None)
    return None, None


def _pair_compilations(
    before: tuple[CompilationRecord, ...], after: tuple[CompilationRecord, ...], is_one_compiler: bool
) -> Pairs:
    """Pair compilations with equal graphs first, the others in order."""
    left = list(after)
    pairs: Pairs = []
    rest = []
    for first in before:
        equal = next((s for s in left if all(d.is_same for d in _compare(first, s, is_one_compiler))), None)
        if equal is None:
            rest.append(first)
        else:
            left.remove(equal)
            pairs.append((first, equal))
    longest = max(len(rest), len(left))
    padded = [[*side, *[None] * (longest - len(side))] for side in (rest, left)]
    return pairs + list(zip(*padded, strict=True))


def _compare(first: CompilationRecord, second: CompilationRecord, is_one_compiler: bool) -> list[GraphDifference]:
    traced = _compare_stages(first, second, TRACED, is_one_compiler)
    if not is_one_compiler:
        return traced
    functional = _compare_stages(first, second, FUNCTIONAL, is_one_compiler)
    if not functional:
        return traced
    if traced and all(d.is_same for d in traced):
        # Mutated inputs and gradients are returned in the order of the inputs, which are read in another order.
        functional = [replace(d, has_other_order_of_outputs=False) for d in functional]
    if all(d.is_same for d in functional):
        return functional
    is_spelled_alike = traced and all(d.is_same for d in traced)
    return functional if is_spelled_alike or not traced else traced


def _compare_stages(
    first: CompilationRecord, second: CompilationRecord, stages: tuple[str, ...], is_one_compiler: bool
) -> list[GraphDifference]:
    a, b = (_by_stage(c, stages) for c in (first, second))
    empty = GraphRecord("", "", "")
    differences = []
    for stage in dict.fromkeys([*a, *b]):
        inputs = tuple(_known_inputs(c, graphs, stage) for c, graphs in ((first, a), (second, b)))
        pair = a.get(stage, empty), b.get(stage, empty)
        differences.append(compare_graphs(*pair, with_strides=is_one_compiler, inputs=(inputs[0], inputs[1])))
    return differences


def _known_inputs(compilation: CompilationRecord, graphs: dict[str, GraphRecord], stage: str) -> GraphInputs:
    """Return the names of numbered inputs: those of the traced graph, in its order."""
    forward = graphs.get("forward") if stage == "backward" else None
    named = forward or graphs.get(stage)
    traced = next((g for g in compilation.graphs if g.stage in TRACED), None)
    if named is None or traced is None:
        return GraphInputs(forward=forward)
    inputs = [n for n in traced.nodes if n.op == "placeholder"]
    numbered = [n for n in named.nodes if n.op == "placeholder" and _NUMBERED.fullmatch(n.name)]
    is_alike = [n.shape for n in inputs] == [n.shape for n in numbered]
    names = {n.name: input_name(i.name) for n, i in zip(numbered, inputs, strict=True)} if is_alike else {}
    return GraphInputs(names, forward)


def _by_stage(record: CompilationRecord, stages: tuple[str, ...]) -> dict[str, GraphRecord]:
    return {TRACED[0] if g.stage in TRACED else g.stage: g for g in record.graphs if g.stage in stages}


def _node_text(node: NodeRecord) -> str:
    shape = "" if node.shape is None else f"  # {node.dtype}[{', '.join(node.shape)}]"
    where = f"line {node.span.line}: " if node.span is not None else ""
    return f"{where}{node.text}{shape}"


def _size(compilations: tuple[CompilationRecord, ...]) -> str:
    counts = list(_operation_counts(compilations))
    return ", ".join(f"{stage} {count:,}" for stage, count in counts) or "none"


def _operation_counts(compilations: tuple[CompilationRecord, ...]) -> Iterator[tuple[str, int]]:
    sizes: dict[str, int] = {}
    for graph in (g for c in compilations for g in c.graphs if g.stage in TRACED + FUNCTIONAL):
        stage = TRACED[0] if graph.stage in TRACED else graph.stage
        sizes[stage] = sizes.get(stage, 0) + sum(n.op not in _NO_OPERATION for n in graph.nodes)
    yield from sizes.items()


def limit_lines(lines: Sequence[str]) -> tuple[str, ...]:
    """Return at most ``MAX_LINES`` lines; one more says how many are left out."""
    more = len(lines) - MAX_LINES
    return (*lines[:MAX_LINES], *([f"… and {more:,} more"] if more > 0 else ()))
