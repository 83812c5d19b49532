"""Expectations for tests: limits on graphs, graph breaks and recompiles."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from engine.errors import ExpectationFailed
from engine.ir.user_code_files import display_name
from engine.records.bytecode import Span
from engine.records.session import CompilationRecord, Session


@contextlib.contextmanager
def check_expectations(
    session: Session,
    graphs: int | None = None,
    breaks: int | None = None,
    recompiles: int | None = None,
    *,
    guards: int | None = None,
    peak_bytes: int | None = None,
) -> Iterator[Session]:
    """Check graphs, breaks, recompiles, guards and peak memory; None allows any.

    Raises:
        ExpectationFailed: there was more of something, or fewer graphs, than given. The
            message has the reason and the line of each.
    """
    before, calls = {c.id for c in session.compilations}, len(session.calls)
    yield session
    compilations = tuple(c for c in session.compilations if c.id not in before)
    problems = [
        *_graph_problems(compilations, graphs, sum(c.outcome == "hit" for c in session.calls[calls:])),
        *_break_problems(compilations, breaks),
        *_recompile_problems(session, compilations, recompiles),
        *_limit_problems(compilations, guards, peak_bytes),
    ]
    if problems:
        raise ExpectationFailed("\n".join(problems))


def _graph_problems(compilations: tuple[CompilationRecord, ...], allowed: int | None, hits: int) -> Iterator[str]:
    graph_ids = [c.id for c in compilations for g in c.graphs if g.stage == "fx"]
    if allowed is None or len(graph_ids) == allowed:
        return
    earlier = f", and {_count(hits, 'call')} ran code from before; engine.reset() removes it" if hits else ""
    got = f" (compilations {', '.join(graph_ids)})" if graph_ids else f": nothing was compiled{earlier}"
    yield f"expected {_count(allowed, 'graph')}, got {len(graph_ids)}{got}"


def _break_problems(compilations: tuple[CompilationRecord, ...], allowed: int | None) -> Iterator[str]:
    breaks = [b for c in compilations if c.trace is not None for b in c.trace.breaks]
    if allowed is None or sum(b.count for b in breaks) <= allowed:
        return
    yield f"expected at most {_count(allowed, 'graph break')}, got {sum(b.count for b in breaks)}:"
    yield from (f"  {b.title}: {b.context}{_line_text(b.span)}" for b in breaks)


def _recompile_problems(
    session: Session, compilations: tuple[CompilationRecord, ...], allowed: int | None
) -> Iterator[str]:
    recompiles = [c for c in compilations if not c.id.endswith("/0")]
    if allowed is None or len(recompiles) <= allowed:
        return
    spans = {call.entry: r.span for call in session.calls for r in call.guard_failures[:1]}
    names = {f.id: f.name for f in session.frames}
    yield f"expected at most {_count(allowed, 'recompile')}, got {len(recompiles)}:"
    yield from (f"  {names.get(c.frame, c.frame)}: {c.cause}{_line_text(spans.get(c.id))}" for c in recompiles)


def _limit_problems(
    compilations: tuple[CompilationRecord, ...], guards: int | None, peak_bytes: int | None
) -> Iterator[str]:
    count = sum(len(c.guards.guards) for c in compilations if c.guards is not None)
    if guards is not None and count > guards:
        yield f"expected at most {_count(guards, 'guard')}, got {count}"
    partitions = [c.aot.partition for c in compilations if c.aot is not None and c.aot.partition is not None]
    peak = max((max(p.forward_peak_bytes, p.backward_peak_bytes) for p in partitions), default=0)
    if peak_bytes is not None and peak > peak_bytes:
        yield f"expected an estimated peak of at most {peak_bytes:,} bytes, got {peak:,}"


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def _line_text(span: Span | None) -> str:
    return "" if span is None else f" ({display_name(span.file)}, line {span.line})"
