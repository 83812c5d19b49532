"""Facts about the compilations of a test: baseline, regressions, Markdown report."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

from engine.records.base import Record
from engine.records.counts import breaks_of, causing_guard_failure, groups, recompiles_of
from engine.records.findings import span_text
from engine.records.session import Session

PEAK_TOLERANCE = 1.02
"""Ratio of peak bytes to the baseline's from which on a test fails."""
MAX_ROWS = 200
"""Maximum number of tests in a table of the report; the rest is counted."""


class CompileFacts(Record):
    """Facts about the compilations of one test.

    ``breaks``: place and title of each graph break. ``recompiles``: function and reason of each. ``peak_bytes``:
    largest estimated peak memory of a forward or backward, in bytes.
    """

    graphs: int = 0
    breaks: tuple[str, ...] = ()
    recompiles: tuple[str, ...] = ()
    guards: int = 0
    peak_bytes: int = 0

    @property
    def is_empty(self) -> bool:
        """True if nothing was compiled."""
        return not self.graphs and not self.breaks


class CompileBaseline(Record):
    """Facts by test id, as a file holds them."""

    tests: dict[str, CompileFacts]
    version: int = 1


def compile_facts(sessions: Sequence[Session]) -> CompileFacts:
    """Return what the recorded code compiled; several sessions are summed."""
    compiled = [c for s in sessions for c in s.compilations]
    partitions = [c.aot.partition for c in compiled if c.aot is not None and c.aot.partition is not None]
    return CompileFacts(
        graphs=sum(g.stage == "fx" for c in compiled for g in c.graphs),
        breaks=tuple(text for s in sessions for text in _breaks(s)),
        recompiles=tuple(text for s in sessions for text in _recompiles(s)),
        guards=sum(len(c.guards.guards) for c in compiled if c.guards is not None),
        peak_bytes=max((max(p.forward_peak_bytes, p.backward_peak_bytes) for p in partitions), default=0),
    )


def _breaks(session: Session) -> Iterator[str]:
    for group in groups(session):
        for _, record in breaks_of(group.compilations):
            line = span_text(session, record.span)
            yield f"{line}: {record.title}" if line else record.title


def _recompiles(session: Session) -> Iterator[str]:
    for group in groups(session):
        names = {f.id: f.name for f in group.frames}
        for compilation in recompiles_of(session, group):
            failure = causing_guard_failure(session, compilation.id)
            line = span_text(session, failure.span) if failure else ""
            reason = failure.sentence if failure and failure.sentence else compilation.cause
            yield f"{line or names.get(compilation.frame, group.root.name)}: {reason.rstrip('.')}"


def regressions(facts: CompileFacts, baseline: CompileFacts) -> tuple[str, ...]:
    """Return one line for each fact that exceeds the baseline."""
    return tuple(_regressions(facts, baseline))


def _regressions(facts: CompileFacts, baseline: CompileFacts) -> Iterator[str]:
    for word, new, old in (
        ("break", facts.breaks, baseline.breaks),
        ("recompile", facts.recompiles, baseline.recompiles),
    ):
        if len(new) > len(old):
            added = _added_texts(new, old)
            yield f"{len(new) - len(old)} new {word}{'s' if len(new) - len(old) > 1 else ''}: {'; '.join(added)}"
    for word, now, then in (("graphs", facts.graphs, baseline.graphs), ("guards", facts.guards, baseline.guards)):
        if now > then:
            yield f"{now:,} {word} instead of {then:,}"
    if facts.peak_bytes > baseline.peak_bytes * PEAK_TOLERANCE:
        yield f"estimated peak of {facts.peak_bytes:,} bytes instead of {baseline.peak_bytes:,}"


def _added_texts(new: tuple[str, ...], old: tuple[str, ...]) -> list[str]:
    """Return the texts that are new; if lines only moved, by their reasons."""
    added = list((Counter(new) - Counter(old)).elements())
    left = Counter(text.partition(": ")[2] for text in (Counter(old) - Counter(new)).elements())
    texts_with_new_reasons = []
    for text in added:
        reason = text.partition(": ")[2]
        if left[reason] > 0:
            left[reason] -= 1
        else:
            texts_with_new_reasons.append(text)
    return texts_with_new_reasons or added


def markdown_report(tests: Mapping[str, CompileFacts], baseline: Mapping[str, CompileFacts] | None) -> str:
    """Return a report for a pull request: regressions first, all tests folded."""
    baseline_tests = baseline or {}
    worse = {
        t: changes
        for t, f in tests.items()
        if baseline is not None and (changes := regressions(f, baseline_tests.get(t, f)))
    }
    better = {
        t: changes
        for t, f in tests.items()
        if t in baseline_tests and t not in worse and (changes := regressions(baseline_tests[t], f))
    }
    lines = ["## Compile report", "", _headline(tests, worse, has_baseline=baseline is not None), ""]
    if worse:
        lines += ["### Regressions", "", *(f"- `{t}`: {_escape('; '.join(p))}" for t, p in worse.items()), ""]
    if better:
        lines += ["### Better than the baseline (update it)", "", *(f"- `{t}`" for t in better), ""]
    rows = [
        f"| `{t}` | {f.graphs} | {len(f.breaks)} | {len(f.recompiles)} | {f.guards} | {f.peak_bytes:,} |"
        for t, f in tests.items()
    ]
    head = ["| test | graphs | breaks | recompiles | guards | peak bytes |", "|---|---|---|---|---|---|"]
    more = [f"| and {len(rows) - MAX_ROWS:,} more | | | | | |"] if len(rows) > MAX_ROWS else []
    summary = f"<details><summary>All {len(rows):,} tests that compile</summary>"
    return "\n".join([*lines, summary, "", *head, *rows[:MAX_ROWS], *more, "", "</details>", ""])


def _headline(tests: Mapping[str, CompileFacts], worse: Mapping[str, Sequence[str]], *, has_baseline: bool) -> str:
    if not has_baseline:
        return f"{len(tests):,} tests compile. There is no baseline to compare with."
    return (
        f"{len(worse):,} of {len(tests):,} tests that compile exceed the baseline."
        if worse
        else (f"No regressions in {len(tests):,} tests that compile.")
    )


def _escape(text: str) -> str:
    """Return untrusted text as one line of Markdown, without markup of its own."""
    flat = " ".join("".join(c if c.isprintable() else " " for c in text).split())[:800]
    return "".join(f"\\{c}" if c in "\\`*_[]<>|#" else c for c in flat)
