"""Findings of a session as text for a terminal, as Markdown, and as JSON values."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator
from typing import Any

from engine.records.findings import SEVERITIES, Finding, Severity, find_problems, span_text
from engine.records.format_amounts import format_seconds
from engine.records.session import Session

WIDTH = 110
"""Columns of the text."""
MAX_FINDINGS = 30
"""Maximum number of findings in the text; the rest is counted."""


def findings_text(session: Session) -> str:
    """Return the ranked findings of a session: each with cause, line, fixes and expected gain."""
    findings = find_problems(session)
    lines = [findings_headline(findings)]
    for number, finding in enumerate(findings[:MAX_FINDINGS], 1):
        lines += _finding_lines(session, number, finding)
    if len(findings) > MAX_FINDINGS:
        lines.append(f"... and {len(findings) - MAX_FINDINGS:,} more findings")
    return "\n".join(lines)


def findings_headline(findings: tuple[Finding, ...]) -> str:
    """Return the number of findings by severity as one sentence."""
    if not findings:
        return "No findings."
    counts = [(sum(f.severity == severity for f in findings), severity) for severity in SEVERITIES]
    words = [f"{n:,} {s if s == 'advice' or n == 1 else s + 's'}" for n, s in counts if n]
    return f"{len(findings):,} {'finding' if len(findings) == 1 else 'findings'}: {', '.join(words)}."


def _finding_lines(session: Session, number: int, finding: Finding) -> Iterator[str]:
    line = span_text(session, finding.span)
    head = f"{number}. [{finding.severity}] {_one_line(finding.title)}" + (f" ({line})" if line else "")
    yield from textwrap.wrap(head, WIDTH, subsequent_indent="   ", break_long_words=False)
    rows = [("cause", finding.cause)]
    for fix in finding.fixes:
        code = f": {fix.code}" if fix.code else ""
        result = fix.verified or fix.unverified_reason
        rows.append(("fix", f"{fix.text.rstrip('.')}{code}" + (f" [{result}]" if result else "")))
    rows.append(("gain", _gain_text(finding)))
    for word, text in rows:
        if text:
            yield from textwrap.wrap(
                f"   {word}: {_one_line(text)}", WIDTH, subsequent_indent="      ", break_long_words=False
            )


def _gain_text(finding: Finding) -> str:
    seconds = f"{format_seconds(finding.seconds)} of the recorded run" if finding.seconds else ""
    return ", ".join(part for part in (finding.gain, seconds) if part)


def _one_line(text: str) -> str:
    """Return untrusted text on one line without control characters, at most 600 characters."""
    flat = " ".join("".join(c if c.isprintable() else " " for c in text).split())
    return flat if len(flat) <= 600 else flat[:599] + "…"


def findings_json(session: Session) -> dict[str, Any]:
    """Return the findings as JSON values: a headline and a list, each with its location."""
    findings = find_problems(session)
    return {
        "compiler": session.compiler,
        "headline": findings_headline(findings),
        "findings": [{**f.to_dict(), "place": span_text(session, f.span)} for f in findings],
        "notes": list(session.notes),
        **({"ranks": {**session.ranks.to_dict(), "arrivals": []}} if session.ranks is not None else {}),
    }


def has_finding(session: Session, at_least: Severity) -> bool:
    """Return True if a finding is at least as severe as this."""
    return any(SEVERITIES.index(f.severity) <= SEVERITIES.index(at_least) for f in find_problems(session))


class Diagnosis:
    """Result of ``doctor``: ``findings`` most important first, ``str()`` is a report.

    ``session`` has all records.
    """

    def __init__(self, session: Session) -> None:
        self.session = session

    @property
    def findings(self) -> tuple[Finding, ...]:
        """The findings, most important first."""
        return find_problems(self.session)

    def to_dict(self) -> dict[str, Any]:
        """Return the findings as JSON values."""
        return findings_json(self.session)

    def __bool__(self) -> bool:
        """Return True if there is a finding."""
        return bool(self.findings)

    def __repr__(self) -> str:
        return findings_text(self.session)
