"""Records of a session as short tables of text, for lessons and plain terminals."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Sequence

import torch

import engine
from engine.records.counts import counts
from engine.records.session import Session
from engine.trace.graph_breaks.reasons import BREAK_REASONS
from notebook_ext.views.breaks import breaks

__all__ = [
    "break_lines",
    "print_aot_values",
    "print_break_examples",
    "print_breaks",
    "print_fusion_decisions",
    "print_graph",
    "print_partition",
    "print_recompile_causes",
    "print_symbols",
    "print_with_stock",
    "print_wrappers",
]

FIRST_CALL = "first call"


def print_graph(session: Session, stage: int = 0) -> None:
    """Print one graph of the first compilation, a node a line; stage 0 is the FX graph."""
    graph = session.compilations[0].graphs[stage]
    for node in graph.nodes:
        print(f"{node.op:14} {node.name:8} {node.text}")


def print_symbols(session: Session) -> None:
    """Print each symbol: function, source, range, and the lines that use an assumption."""
    names = {frame.id: frame.name for frame in session.frames}
    for compilation in session.compilations:
        for symbol in compilation.trace.symbols if compilation.trace else ():
            of, sources = f"{names[compilation.frame]} {compilation.id}", ", ".join(symbol.sources)
            high = "any size" if symbol.high is None else symbol.high
            print(f"{of}: {symbol.name} = {sources}, valid for {symbol.low} to {high} ({symbol.why})")
            for fact in symbol.assumptions:
                print(f"      {fact.text}" + (f"   line {fact.span.line}" if fact.span else ""))
            if symbol.specialized_to:
                at = symbol.specialized_by.span if symbol.specialized_by else None
                print(f"      specialized to {symbol.specialized_to}" + (f"   line {at.line}" if at else ""))


def print_wrappers(session: Session) -> None:
    """Print the AOT runtime wrappers of the first compilation that do something."""
    aot = session.compilations[0].aot
    for wrapper in aot.wrappers if aot else ():
        for action in wrapper.actions:
            print(f"{wrapper.name:18} {action.argument:12} {action.action}")


def print_aot_values(session: Session) -> None:
    """Print the facts about inputs and outputs: mutated, an alias, new storage."""
    aot = session.compilations[0].aot
    for value in aot.values if aot else ():
        print(f"{value.role:7} {value.name:10} {', '.join(value.facts)}")


def print_partition(session: Session) -> None:
    """Print the values that are saved for backward or recomputed, with bytes and reasons."""
    aot = session.compilations[0].aot
    partition = aot.partition if aot else None
    if partition is None:
        print("There is no backward: no input requires a gradient.")
        return
    for value in partition.values:
        print(f"{value.action:11} {value.name:18} {value.bytes / 1024:6.0f} KiB   {value.reason}")
    without = partition.bytes_without_recompute / 1024
    print(f"saved: {partition.saved_bytes / 1024:.0f} KiB; without recomputation it would be {without:.0f} KiB")


def print_breaks(session: Session) -> None:
    """Print each graph break: its line, its title, and the expression."""
    for row in breaks(session)["breaks"]:
        print(row["place"], "·", row["title"])
        print(row["pointed"])


def print_break_examples(*reasons: str) -> None:
    """Print each reason for a graph break: its title, its example, and the repaired example."""
    for reason in reasons:
        entry = BREAK_REASONS[reason]
        print(f"# {entry.title}\n{entry.example_before} \n# repaired:\n{entry.example_after} \n")


def print_fusion_decisions(session: Session) -> None:
    """Print which operations the scheduler fused, below its reason, with the bytes saved."""
    reason, lowering = "", session.compilations[0].lowering
    for decision in lowering.decisions if lowering else ():
        if decision.reason != reason:
            reason = decision.reason
            print(reason)
        first = [n.rpartition(":")[2] for n in decision.first]
        second = [n.rpartition(":")[2] for n in decision.second if n not in decision.first]
        pair = f"{', '.join(first)} with {second[0] if second else 'its other part'}"
        saved = f"saves {decision.bytes_saved / 1e3:,.0f} kB" if decision.bytes_saved else ""
        print("    fused    " if decision.fused else "    NOT fused", pair.ljust(28), saved)


def break_lines(session: Session) -> list[int]:
    """Return the lines at which graphs broke, in order, each once."""
    return sorted({b.span.line for c in session.compilations if c.trace for b in c.trace.breaks if b.span})


def print_recompile_causes(session: Session) -> None:
    """Print how many recompiles each source caused, most frequent first.

    Sources that differ in an index count as one. Values that cross a graph break count together, by its line.
    """
    tally: Counter[str] = Counter()
    for compilation in session.compilations:
        if compilation.cause != FIRST_CALL:
            # A relation ends in "(s0 is x.size(0))".
            cause = re.sub(r"^The compiled code requires .*?\(\w+ is ", "", compilation.cause)
            subject = re.split(r" is | has |\)[,;)]", cause)[0]
            at_break = re.search(r"carried over the graph break at line \d+", subject)
            tally[f"a value {at_break[0]}" if at_break else re.sub(r"\[\d+\]", "[…]", subject)] += 1
    for subject, times in tally.most_common():
        print(times, "×", subject)


def print_with_stock(function: Callable[..., object], *calls: tuple[object, ...]) -> None:
    """Make the calls under this compiler and under stock torch.compile, and print both counts.

    Both run the traced graph operator by operator. Each call is a tuple of arguments. Caches are emptied first.
    """
    engine.reset()
    torch.compiler.reset()
    with engine.record() as ours:
        _call_all(engine.compile(function, backend="eager"), calls)
    graphs: list[torch.fx.GraphModule] = []
    with engine.observe_torch() as stock:
        _call_all(torch.compile(function, backend=_graph_recorder(graphs)), calls)
    traced = sum(bool(c.graphs) for c in ours.compilations)
    print(f"{getattr(function, '__name__', 'function')}, {_count_text(len(calls), 'call')}")
    for name, compiled, session in (("this compiler", traced, ours), ("torch.compile", len(graphs), stock)):
        print(f"    {name}: {_count_text(compiled, 'graph')} compiled, {_count_text(counts(session).breaks, 'break')}")


def _count_text(count: int, what: str) -> str:
    return f"{count} {what}{'s' * (count != 1)}"


def _graph_recorder(graphs: list[torch.fx.GraphModule]) -> Callable[..., object]:
    """Return a backend that appends each graph to ``graphs`` and runs it as it is."""

    def backend(graph: torch.fx.GraphModule, _: object) -> object:
        graphs.append(graph)
        return graph.forward

    return backend


def _call_all(compiled: Callable[..., object], calls: Sequence[tuple[object, ...]]) -> None:
    for call in calls:
        compiled(*call)
