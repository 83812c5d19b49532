"""Record of a fallback: why a stage ran something another way, and what to change."""

from __future__ import annotations

from dataclasses import dataclass

from engine.records.base import Record


@dataclass(frozen=True, slots=True)
class FallbackRecord(Record):
    """A fallback of one stage.

    ``kind``: stable id of the cause. ``reason``: a clause about this call. ``hint``: what to do. ``node``: name of the
    graph node that caused it, if there is one.
    """

    kind: str
    reason: str
    hint: str = ""
    node: str = ""
