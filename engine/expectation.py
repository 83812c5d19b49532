"""Expectations for tests: how many graphs, breaks and recompiles some code may make."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from engine.errors import Expectation
from engine.ir.files import file_name
from engine.records.bytecode import Span
from engine.records.session import CompilationRecord, Session


@contextlib.contextmanager
def expecting(
    session: Session, graphs: int | None = None, breaks: int | None = None, recompiles: int | None = None
) -> Iterator[Session]:
    """Count what ``session`` records while the context is open; None does not count.

    Raises:
        Expectation: there were more graphs, breaks or recompiles than given, or, for graphs, fewer; the message has each one's reason and line.
    """
    before = {c.id for c in session.compilations}
    yield session
    made = tuple(c for c in session.compilations if c.id not in before)
    problems = [*_graphs(made, graphs), *_breaks(made, breaks), *_recompiles(session, made, recompiles)]
    if problems:
        raise Expectation("\n".join(problems))


def _graphs(made: tuple[CompilationRecord, ...], allowed: int | None) -> Iterator[str]:
    found = [c.id for c in made for g in c.graphs if g.stage == "fx"]
    if allowed is None or len(found) == allowed:
        return
    yield f"expected {_count(allowed, 'graph')}, got {len(found)}{' (compilations ' + ', '.join(found) + ')' if found else ': nothing was compiled'}"


def _breaks(made: tuple[CompilationRecord, ...], allowed: int | None) -> Iterator[str]:
    found = [b for c in made if c.trace is not None for b in c.trace.breaks]
    if allowed is None or sum(b.times for b in found) <= allowed:
        return
    yield f"expected at most {_count(allowed, 'graph break')}, got {sum(b.times for b in found)}:"
    yield from (f"  {b.title}: {b.what}{_at(b.span)}" for b in found)


def _recompiles(session: Session, made: tuple[CompilationRecord, ...], allowed: int | None) -> Iterator[str]:
    found = [c for c in made if not c.id.endswith("/0")]
    if allowed is None or len(found) <= allowed:
        return
    spans = {call.entry: r.span for call in session.calls for r in call.rejections[:1]}
    names = {f.id: f.name for f in session.frames}
    yield f"expected at most {_count(allowed, 'recompile')}, got {len(found)}:"
    yield from (f"  {names.get(c.frame, c.frame)}: {c.cause}{_at(spans.get(c.id))}" for c in found)


def _count(number: int, word: str) -> str:
    return f"{number} {word}" if number == 1 else f"{number} {word}s"


def _at(span: Span | None) -> str:
    return "" if span is None else f" ({file_name(span.file)}, line {span.line})"
