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
    before = {c.id for c in session.compilations}
    yield session
    made = tuple(c for c in session.compilations if c.id not in before)
    problems = [
        *_graph_problems(made, graphs),
        *_break_problems(made, breaks),
        *_recompile_problems(session, made, recompiles),
        *_limit_problems(made, guards, peak_bytes),
    ]
    if problems:
        raise ExpectationFailed("\n".join(problems))


def _graph_problems(made: tuple[CompilationRecord, ...], allowed: int | None) -> Iterator[str]:
    found = [c.id for c in made for g in c.graphs if g.stage == "fx"]
    if allowed is None or len(found) == allowed:
        return
    yield f"expected {_count(allowed, 'graph')}, got {len(found)}{' (compilations ' + ', '.join(found) + ')' if found else ': nothing was compiled'}"


def _break_problems(made: tuple[CompilationRecord, ...], allowed: int | None) -> Iterator[str]:
    found = [b for c in made if c.trace is not None for b in c.trace.breaks]
    if allowed is None or sum(b.count for b in found) <= allowed:
        return
    yield f"expected at most {_count(allowed, 'graph break')}, got {sum(b.count for b in found)}:"
    yield from (f"  {b.title}: {b.context}{_line_text(b.span)}" for b in found)


def _recompile_problems(session: Session, made: tuple[CompilationRecord, ...], allowed: int | None) -> Iterator[str]:
    found = [c for c in made if not c.id.endswith("/0")]
    if allowed is None or len(found) <= allowed:
        return
    spans = {call.entry: r.span for call in session.calls for r in call.guard_failures[:1]}
    names = {f.id: f.name for f in session.frames}
    yield f"expected at most {_count(allowed, 'recompile')}, got {len(found)}:"
    yield from (f"  {names.get(c.frame, c.frame)}: {c.cause}{_line_text(spans.get(c.id))}" for c in found)


def _limit_problems(made: tuple[CompilationRecord, ...], guards: int | None, peak_bytes: int | None) -> Iterator[str]:
    count = sum(len(c.guards.guards) for c in made if c.guards is not None)
    if guards is not None and count > guards:
        yield f"expected at most {_count(guards, 'guard')}, got {count}"
    partitions = [c.aot.partition for c in made if c.aot is not None and c.aot.partition is not None]
    peak = max((max(p.forward_peak_bytes, p.backward_peak_bytes) for p in partitions), default=0)
    if peak_bytes is not None and peak > peak_bytes:
        yield f"expected an estimated peak of at most {peak_bytes:,} bytes, got {peak:,}"


def _count(number: int, word: str) -> str:
    return f"{number} {word}" if number == 1 else f"{number} {word}s"


def _line_text(span: Span | None) -> str:
    return "" if span is None else f" ({display_name(span.file)}, line {span.line})"
