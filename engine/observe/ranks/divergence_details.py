"""Details of a divergence of ranks: what each side has, and the line of user code."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import zip_longest

from engine.ir.user_code_files import is_installed_file
from engine.observe.canonical.compare_compilations import differing_nodes
from engine.observe.compare_sessions import normalize_process_names
from engine.observe.ranks.rank_contents import COMPILER_SETTING, collectives_of, is_tensor_text
from engine.records.bytecode import Span
from engine.records.ranks.collectives import rank_free_text
from engine.records.ranks.groups import RankDivergence
from engine.records.session import CompilationRecord, Session

_VARIANT_NAME = re.compile(r"(_into_tensor|_tensor|_single|_coalesced|_out|_)+$")
Facts = Iterator[tuple[str, Span | None]]
"""Facts of one aspect in order, each with its line."""


def with_divergence_details(divergence: RankDivergence, mine: Session, others: Session) -> RankDivergence:
    """Return a divergence with its line and what each of the two sessions has."""
    own, other = _compilation(mine, divergence.compilation), _compilation(others, divergence.compilation)
    frame = _frame_span(mine, own) or _frame_span(others, other)
    if own is None or other is None:
        there = own or other
        text = f"compiled ({there.cause.removesuffix('.')})" if there is not None else ""
        texts = (text, "not compiled") if own is not None else ("not compiled", text)
        span = _recompile_span(mine if own is not None else others, divergence.compilation)
        return replace(divergence, here=texts[0], there=texts[1], span=span or frame)
    here, there_, span = _difference(divergence.aspect, _without_group_names(own), _without_group_names(other))
    return replace(divergence, here=here, there=there_, span=span or frame)


def _without_group_names(compilation: CompilationRecord) -> CompilationRecord:
    groups = {name: dim for g in compilation.graphs if g.mesh for name, dim in g.mesh.groups}
    if not groups:
        return compilation
    graphs = [
        replace(g, nodes=tuple(replace(n, text=rank_free_text(n.text, groups)) for n in g.nodes))
        for g in compilation.graphs
    ]
    return replace(compilation, graphs=tuple(graphs))


def _compilation(session: Session, wanted: str) -> CompilationRecord | None:
    return next((c for c in session.compilations if c.id == wanted), None)


def _frame_span(session: Session, compilation: CompilationRecord | None) -> Span | None:
    frames = (f for f in session.frames if compilation is not None and f.id == compilation.frame)
    return next((f.resumes_after or Span(f.file, f.first_line) for f in frames), None)


def _recompile_span(session: Session, compilation: str) -> Span | None:
    calls = [c for c in session.calls if c.entry == compilation and c.outcome == "compiled"]
    failures = [f.span for c in calls for f in c.guard_failures if f.span is not None]
    is_caller_known = session.compiler != "torch"  # stock torch.compile leaves the innermost caller out
    return next(iter(failures), None) or next((c.caller for c in calls if c.caller and is_caller_known), None)


def _difference(aspect: str, mine: CompilationRecord, others: CompilationRecord) -> tuple[str, str, Span | None]:
    """Return the first fact that each side has alone, and the line of one of them."""
    if aspect == "graphs":
        own, other = differing_nodes(mine, others)
        span = next(
            (s for n in (own, other) if n is not None and (s := user_span((n.span, *n.stack))) is not None), None
        )
        return own.text if own else "", other.text if other else "", span
    facts_of = _FACTS.get(aspect)
    if facts_of is None:
        return "", "", None
    first, second = list(facts_of(mine)), list(facts_of(others))
    if aspect in _UNORDERED:
        counts = [Counter(text for text, _ in side) for side in (first, second)]
        first, second = [f for f in first if not counts[1][f[0]]], [f for f in second if not counts[0][f[0]]]
        for side in (first, second):  # guards on the rank's own number differ on equal ranks too
            side.sort(key=lambda fact: "rank" in fact[0])
    for one, other_one in zip_longest(first, second):
        if one is None or other_one is None or one[0] != other_one[0]:
            here, there = one or ("", None), other_one or ("", None)
            return here[0], there[0], here[1] or there[1]
    return "", "", None


def user_span(spans: tuple[Span | None, ...]) -> Span | None:
    """Return the innermost line that is not of an installed package."""
    recorded = [s for s in spans if s is not None]
    return next((s for s in reversed(recorded) if not is_installed_file(s.file)), recorded[0] if recorded else None)


def _collectives(compilation: CompilationRecord) -> Facts:
    """Yield the collectives of the ATen graphs, else of the traced one."""
    stages = {g.stage: g for g in compilation.graphs}
    shown = [stages[s] for s in ("aten", "forward", "backward") if s in stages] or list(compilation.graphs[:1])
    for node in (n for g in shown for n in g.nodes):
        for call in collectives_of(node.text.encode()):
            span = user_span((node.span, *node.stack))
            is_exact = span is not None and span.column >= 0  # a log has the line within torch.distributed only
            yield call, span if is_exact else _collective_span(compilation, call) or span


def _collective_span(compilation: CompilationRecord, call: str) -> Span | None:
    """Return the user's line that names a collective's function, from the guard on this name.

    The printed graph has the line within torch.distributed only.
    """
    name = _VARIANT_NAME.sub("", call.partition("(")[0])
    guards = compilation.guards.guards if compilation.guards else ()
    spans = (user_span((g.span, *g.stack)) for g in guards if name in g.source)
    return next((s for s in spans if s is not None and not is_installed_file(s.file)), None)


def _guards(compilation: CompilationRecord) -> Facts:
    guards = compilation.guards.guards if compilation.guards else ()
    for guard in (g for g in guards if COMPILER_SETTING not in g.source):
        yield (
            normalize_process_names(f"{guard.source} {guard.kind}: {guard.expected}"),
            user_span((guard.span, *guard.stack)),
        )


def _inputs(compilation: CompilationRecord) -> Facts:
    if compilation.inputs:
        yield from ((f"{name}: {text}", None) for name, text in compilation.inputs.items() if is_tensor_text(text))
        return
    for node in (n for g in compilation.graphs[:1] for n in g.nodes if n.op == "placeholder"):
        yield f"{node.text}: {node.dtype}[{', '.join(node.shape or ())}]", None


def _breaks(compilation: CompilationRecord) -> Facts:
    yield from ((f"{b.title}: {b.context}", b.span) for b in (compilation.trace.breaks if compilation.trace else ()))


_FACTS: dict[str, Callable[[CompilationRecord], Facts]] = {
    "collective order": _collectives,
    "compile ids": lambda c: iter([(c.cause, None)]),
    "graph breaks": _breaks,
    "failures": lambda c: iter([(f.sentence, None) for f in c.failures]),
    "tensor metadata": _inputs,
    "guards": _guards,
    "cache outcomes": lambda c: iter([(f"{d.cache} {d.outcome}", None) for d in c.disk_caches]),
    "kernels": lambda c: iter([(k.name, None) for k in c.kernels]),
}
_UNORDERED = ("guards", "tensor metadata")
