"""Stages of a compilation as properly nested spans."""

from __future__ import annotations

from dataclasses import dataclass

from engine.records.runtime import Timing


@dataclass(frozen=True)
class StageSpan:
    """One stage: its name, its start and end in seconds, and its number of enclosing stages."""

    stage: str
    start: float
    end: float
    depth: int


def stage_spans(timings: tuple[Timing, ...]) -> list[StageSpan]:
    """Return the stages in order, each inside its parent and after its siblings.

    Clocks of different sources may disagree by microseconds, which a nested format does not allow.
    """
    children: dict[str, list[Timing]] = {}
    stages = {t.stage for t in timings}
    for timing in sorted(timings, key=lambda t: t.start):
        children.setdefault(timing.parent if timing.parent in stages else "", []).append(timing)
    spans: list[StageSpan] = []

    def add(parent: str, start: float, end: float, depth: int) -> None:
        for timing in children.pop(parent, ()):
            start = min(max(start, timing.start), end)
            last = min(start + timing.seconds, end)
            spans.append(StageSpan(timing.stage, start, last, depth))
            add(timing.stage, start, last, depth + 1)
            start = last

    add("", 0.0, float("inf"), 0)
    return spans
