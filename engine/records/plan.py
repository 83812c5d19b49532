"""Plan of a distributed training step: collectives, memory and modeled time."""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from engine.group_pairs import group_pairs
from engine.records.format_amounts import format_seconds
from engine.records.ranks.groups import format_ranks

MEMORY_CATEGORIES = (
    "parameters",
    "gathered parameters",
    "gradients",
    "optimizer state",
    "activations",
    "communication",
    "temporaries",
    "inputs and others",
)
"""Categories of live storages, in the order of the curve from bottom to top."""


@dataclass(frozen=True, slots=True)
class PlannedCollective:
    """One collective of one rank.

    ``bytes`` is the size of the larger of input and output on this rank. ``start`` and the durations are modeled
    seconds since the start of the step. ``step`` is 0 for collectives before the first step.
    """

    kind: str
    operator: str
    dtype: str
    bytes: int
    group: str
    group_size: int
    link: str
    phase: str
    step: int
    file: str
    line: int
    start: float
    seconds: float
    exposed_seconds: float = 0.0
    hidden_by: str = ""
    """Operator for whose inputs DTensor inserts it; empty if a line asks for it."""


@dataclass(frozen=True, slots=True)
class MemoryPoint:
    """Live storage bytes by category; ``at`` counts the operators of the run."""

    at: int
    phase: str
    bytes: tuple[int, ...]

    @property
    def total(self) -> int:
        """Sum of all categories in bytes."""
        return sum(self.bytes)


@dataclass(frozen=True, slots=True)
class PlannedOperator:
    """Calls of one operator in the step, with their sum of modeled seconds, flops and bytes."""

    name: str
    calls: int
    seconds: float
    flops: int
    bytes: int


@dataclass(frozen=True, slots=True)
class RankClass:
    """Ranks with the same collectives, memory and operators.

    ``setup`` are the collectives before the first step, ``collectives`` those of the last planned step, which is
    also what the seconds and operators are about. The memory curve and ``peak`` are about the whole run, ``step_peak``
    leaves out what precedes the first step.
    """

    ranks: tuple[int, ...]
    steps: int
    setup: tuple[PlannedCollective, ...]
    collectives: tuple[PlannedCollective, ...]
    peak_bytes: int
    peak: MemoryPoint
    step_peak: MemoryPoint
    peak_line: str
    curve: tuple[MemoryPoint, ...]
    step_seconds: float
    compute_seconds: float
    communication_seconds: float
    exposed_seconds: float
    operators: tuple[PlannedOperator, ...]
    notes: tuple[str, ...] = ()

    @property
    def collective_bytes(self) -> int:
        """Bytes of all collectives of the step."""
        return sum(c.bytes for c in self.collectives)

    @property
    def hidden_seconds(self) -> float:
        """Modeled seconds of communication while computation runs."""
        return max(0.0, self.communication_seconds - self.exposed_seconds)


@dataclass(frozen=True, slots=True)
class Plan:
    """Plan of a training step on ``world`` ranks, made without devices.

    ``constants`` are those of the time model. ``print(plan)`` shows the plan as text; ``compare`` the difference
    from another plan; ``to_dict`` and ``save`` give the same facts as JSON.
    """

    name: str
    world: int
    mesh: dict[str, int]
    device: str
    constants: dict[str, Any]
    classes: tuple[RankClass, ...]
    notes: tuple[str, ...] = field(default=())

    @property
    def worst(self) -> RankClass:
        """The class of ranks with the largest peak of memory."""
        return max(self.classes, key=lambda c: c.peak_bytes)

    def compare(self, other: Plan) -> PlanDifference:
        """Return the difference from this plan to ``other``, each by its worst ranks."""
        return PlanDifference(self, other)

    def to_dict(self) -> dict[str, Any]:
        """Return the plan as JSON-compatible values."""
        return dataclasses.asdict(self)

    @classmethod
    def from_dict(cls, value: dict[str, Any]) -> Plan:
        """Return the plan that ``to_dict`` gave."""
        return cls(**{**value, "classes": tuple(map(rank_class, value["classes"])), "notes": tuple(value["notes"])})

    def save(self, path: str) -> None:
        """Write the plan as JSON."""
        Path(path).write_text(json.dumps(self.to_dict()), encoding="utf-8")

    def __str__(self) -> str:
        return "\n".join(_plan_lines(self))

    __repr__ = __str__


def rank_class(value: dict[str, Any]) -> RankClass:
    """Return the class of ranks that ``dataclasses.asdict`` gave."""
    return RankClass(
        **{
            **value,
            "ranks": tuple(value["ranks"]),
            "notes": tuple(value["notes"]),
            "setup": tuple(PlannedCollective(**c) for c in value["setup"]),
            "collectives": tuple(PlannedCollective(**c) for c in value["collectives"]),
            "operators": tuple(PlannedOperator(**o) for o in value["operators"]),
            "curve": tuple(map(_point, value["curve"])),
            "peak": _point(value["peak"]),
            "step_peak": _point(value["step_peak"]),
        }
    )


def _point(value: dict[str, Any]) -> MemoryPoint:
    return MemoryPoint(value["at"], value["phase"], tuple(value["bytes"]))


@dataclass(frozen=True, slots=True)
class PlanDifference:
    """Difference between two plans, as rows of (name, before, after) of their worst ranks."""

    before: Plan
    after: Plan

    @property
    def rows(self) -> tuple[tuple[str, float, float], ...]:
        """Rows of (name, before, after); bytes and seconds as numbers."""
        a, b = self.before.worst, self.after.worst
        return (
            ("ranks", self.before.world, self.after.world),
            ("peak memory, bytes", a.peak_bytes, b.peak_bytes),
            *(
                (f"{name} at the peak, bytes", x, y)
                for name, x, y in zip(MEMORY_CATEGORIES, a.peak.bytes, b.peak.bytes, strict=True)
                if x or y
            ),
            ("collectives in a step", len(a.collectives), len(b.collectives)),
            ("bytes of the collectives", a.collective_bytes, b.collective_bytes),
            ("modeled step, seconds", a.step_seconds, b.step_seconds),
            ("computation, seconds", a.compute_seconds, b.compute_seconds),
            ("communication, seconds", a.communication_seconds, b.communication_seconds),
            ("exposed communication, seconds", a.exposed_seconds, b.exposed_seconds),
        )

    def to_dict(self) -> dict[str, Any]:
        """Return the rows as JSON-compatible values."""
        return {name: {"before": x, "after": y} for name, x, y in self.rows}

    def __str__(self) -> str:
        return "\n".join(
            f"{name.rpartition(',')[0] or name}: {_format_quantity(name, x)} -> {_format_quantity(name, y)}{_change_text(x, y)}"
            for name, x, y in self.rows
        )

    __repr__ = __str__


def _format_quantity(name: str, value: float) -> str:
    if name.startswith("bytes") or name.endswith("bytes"):
        return format_bytes(int(value))
    return format_seconds(value, 4) if name.endswith("seconds") else f"{value:,.0f}"


def _change_text(before: float, after: float) -> str:
    if before == after:
        return " (same)"
    return f" ({after / before - 1:+.0%})" if before else ""


def format_bytes(count: int) -> str:
    """Return bytes as text: ``1.50 GiB``."""
    size, units = float(count), ["B", "KiB", "MiB", "GiB", "TiB"]
    while size >= 1024 and len(units) > 1:
        size /= 1024
        units.pop(0)
    return f"{count} B" if units[0] == "B" else f"{size:.2f} {units[0]}"


def hidden_text(c: PlannedCollective) -> str:
    """Return the remark on a collective that no line asks for; empty for others."""
    return f", inserted by DTensor for {c.hidden_by}" if c.hidden_by else ""


def collective_rows(collectives: tuple[PlannedCollective, ...]) -> list[tuple[PlannedCollective, int, int, float]]:
    """Return collectives grouped by line, kind, group and size.

    A row is (first, calls, bytes, exposed seconds).
    """
    keys = ((c.phase, c.kind, c.dtype, c.bytes, c.group, c.file, c.line, c.hidden_by) for c in collectives)
    groups = group_pairs(zip(keys, collectives, strict=True))
    return [(g[0], len(g), sum(c.bytes for c in g), sum(c.exposed_seconds for c in g)) for g in groups.values()]


def _plan_lines(plan: Plan) -> list[str]:
    mesh = ", ".join(f"{name}={size}" for name, size in plan.mesh.items())
    lines = [f"Plan of {plan.name} on {plan.world} ranks{f' ({mesh})' if mesh else ''}, device {plan.device}"]
    for one in plan.classes:
        lines += ["", *_class_lines(one)]
    return [*lines, *(f"Note: {note}" for note in plan.notes)]


def _class_lines(one: RankClass) -> list[str]:
    lines = [
        f"{format_ranks(one.ranks).capitalize()}, step {one.steps}:",
        f"  peak memory {_peak_text(one.peak)}{f', at {one.peak_line}' if one.peak_line else ''}",
        *([f"  peak of the steps {_peak_text(one.step_peak)}"] if one.step_peak != one.peak else []),
        f"  modeled step {format_seconds(one.step_seconds, 3)}: computation {format_seconds(one.compute_seconds, 3)}, {_communication_text(one)}",
        f"  collectives: {len(one.collectives)} in the step, {format_bytes(one.collective_bytes)}; {len(one.setup)} before the first step",
    ]
    for c, calls, total, exposed in collective_rows(one.collectives):
        name = "cell" if "ipykernel_" in c.file else c.file.rpartition("/")[2]
        where = f"  {name}:{c.line}" if c.line else ""
        lines.append(
            f"    {calls:>4} x {c.kind:<15}{format_bytes(total):>12}  {c.dtype:<9}{c.group} ({c.group_size}, {c.link})"
            f"  {c.phase}, {format_seconds(exposed, 3)} exposed{where}{hidden_text(c)}"
        )
    return [*lines, *(f"  Note: {note}" for note in one.notes)]


def _communication_text(one: RankClass) -> str:
    exposed, hidden = format_seconds(one.exposed_seconds, 3), format_seconds(one.hidden_seconds, 3)
    return f"communication {format_seconds(one.communication_seconds, 3)} ({exposed} exposed, {hidden} hidden)"


def _peak_text(point: MemoryPoint) -> str:
    parts = sorted(zip(point.bytes, MEMORY_CATEGORIES, strict=True), reverse=True)
    return f"{format_bytes(point.total)} ({point.phase}): " + ", ".join(f"{n} {format_bytes(b)}" for b, n in parts if b)
