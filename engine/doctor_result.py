"""Diagnosis of one function or module: ranked findings with verified fixes."""

from __future__ import annotations

from typing import Any

from engine.records.findings import Finding, find_problems
from engine.records.findings_text import findings_json, findings_text
from engine.records.session import Session


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
