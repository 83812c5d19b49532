"""Time of operators and collectives by a model with stated constants."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Self

from engine.errors import BadArgument


@dataclass(frozen=True)
class Hardware:
    """Constants of the time model: one device, and its links to others.

    Rates are per second. ``bf16_flops``, ``f32_flops`` and ``f64_flops`` are those of matrix products as achieved,
    not peaks. Every operator that moves data takes ``launch_seconds`` plus its bytes over ``memory_bandwidth``, or
    its flops over the rate of its dtype, whichever is longer. A collective takes ``latency`` for each step of a ring
    plus the bytes that this rank sends over ``bandwidth``; ``intra`` is within a node, ``inter`` between nodes.
    """

    bf16_flops: float = 6.0e14
    f32_flops: float = 4.5e13
    f64_flops: float = 4.0e13
    memory_bandwidth: float = 2.6e12
    launch_seconds: float = 3e-6
    devices_per_node: int = 8
    intra_bandwidth: float = 3.6e11
    intra_latency: float = 2e-6
    inter_bandwidth: float = 4.5e10
    inter_latency: float = 5e-6
    collective_seconds: float = 1.5e-5
    """Seconds that every collective takes besides its ring."""

    def operator_seconds(self, flops: int, size: int, dtype: str) -> float:
        """Return the seconds of an operator that moves ``size`` bytes."""
        rate = {"float32": self.f32_flops, "float64": self.f64_flops}.get(dtype, self.bf16_flops)
        return self.launch_seconds + max(flops / rate, size / self.memory_bandwidth)

    def collective_time(self, kind: str, size: int, ranks: int, *, crosses_nodes: bool) -> float:
        """Return the seconds of a collective; ``size``: bytes of its larger side."""
        bandwidth, latency = (
            (self.inter_bandwidth, self.inter_latency) if crosses_nodes else (self.intra_bandwidth, self.intra_latency)
        )
        if ranks < 2:
            return self.launch_seconds
        hops = 2 * (ranks - 1) if kind == "all_reduce" else 1 if kind in {"send", "recv"} else ranks - 1
        share = hops / ranks if kind in {"all_reduce", "all_gather", "reduce_scatter", "all_to_all"} else 1.0
        return self.collective_seconds + latency * min(hops, 64) + size * share / bandwidth


def hardware_from(constants: Mapping[str, float] | None) -> Hardware:
    """Return the constants with those of ``constants`` replaced.

    Raises:
        BadArgument: a name or value is none of the model's.
    """
    names = [f.name for f in dataclasses.fields(Hardware)]
    if unknown := sorted(set(constants or {}) - set(names)):
        raise BadArgument(f"The time model has no constant {unknown[0]!r}: it has {', '.join(sorted(names))}.")
    for name, value in (constants or {}).items():
        if not hasattr(value, "__float__") or not value > 0:
            raise BadArgument(f"The constant {name!r} of the time model must be a positive number, not {value!r}.")
    return dataclasses.replace(Hardware(), **(constants or {}))  # type: ignore[arg-type]


class PlannedStream:
    """Stream of a device that runs nothing; its work so far ends at ``ready`` seconds."""

    device_type = 1
    stream_id = device_index = cuda_stream = 0

    def __init__(self, timeline: Timeline) -> None:
        self.timeline = timeline
        self.ready = 0.0
        self.previous: list[PlannedStream] = []

    def wait_stream(self, other: PlannedStream) -> None:
        """Let later work of this stream start after the work of ``other``."""
        self.ready = max(self.ready, other.ready)

    def wait_event(self, event: PlannedEvent) -> None:
        """Let later work of this stream start after ``event``."""
        self.ready = max(self.ready, event.ready)

    def record_event(self, event: PlannedEvent | None = None) -> PlannedEvent:
        """Return an event at the end of the work so far."""
        event = event or PlannedEvent(self.timeline)
        event.ready = self.ready
        return event

    def synchronize(self) -> None:
        """Do nothing: the host never waits in a plan."""

    def query(self) -> bool:
        """Return True: nothing runs."""
        return True

    def is_capturing(self) -> bool:
        """Return False: a plan captures no CUDA graph."""
        return False

    def __enter__(self) -> Self:
        self.previous.append(self.timeline.current)
        self.timeline.current = self
        return self

    def __exit__(self, *error: object) -> None:
        self.timeline.current = self.previous.pop()


class PlannedEvent:
    """Event of a device that runs nothing."""

    def __init__(self, timeline: Timeline) -> None:
        self.timeline = timeline
        self.ready = 0.0

    def record(self, stream: PlannedStream | None = None) -> PlannedEvent:
        """Move the event to the end of a stream's work so far."""
        self.ready = (stream or self.timeline.current).ready
        return self

    def wait(self, stream: PlannedStream | None = None) -> None:
        """Let later work of a stream start after this event."""
        (stream or self.timeline.current).wait_event(self)

    def synchronize(self) -> None:
        """Do nothing: the host never waits in a plan."""

    def query(self) -> bool:
        """Return True: nothing runs."""
        return True

    def elapsed_time(self, other: PlannedEvent) -> float:
        """Return the modeled milliseconds up to ``other``."""
        return (other.ready - self.ready) * 1e3


class Timeline:
    """Modeled time of a device's streams and of the process groups' own streams."""

    def __init__(self) -> None:
        self.default = PlannedStream(self)
        self.current = self.default
        self.groups: dict[str, float] = {}
        self.pending: dict[int, float] = {}
        """End of the collective that writes a storage, by the storage."""
        self.computed: list[tuple[float, float]] = []
        """Intervals of computation, for the step being planned."""

    @property
    def now(self) -> float:
        """Modeled seconds at which all work so far has ended."""
        return max((self.default.ready, self.current.ready, *self.groups.values()))

    def compute(self, seconds: float, storages: list[int]) -> None:
        """Run an operator on the current stream; it waits for collectives that write its storages."""
        start = max((self.current.ready, *(self.pending.pop(s) for s in storages if s in self.pending)))
        self.current.ready = start + seconds
        self.computed.append((start, self.current.ready))

    def communicate(self, seconds: float, group: str, storages: list[int], *, waits: bool) -> float:
        """Run a collective after the current stream's work; return its start.

        ``waits``: later work of the current stream starts after it.
        """
        start = max((self.current.ready, self.groups.get(group, 0.0)))
        self.groups[group] = start + seconds
        if waits:
            self.current.ready = start + seconds
        else:
            self.pending.update(dict.fromkeys(storages, start + seconds))
        return start


def merge_intervals(spans: list[tuple[float, float]]) -> list[tuple[float, float]]:
    """Return the union of intervals as sorted intervals that do not touch."""
    merged: list[tuple[float, float]] = []
    for start, end in sorted(spans):
        if merged and start <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(merged[-1][1], end))
        else:
            merged.append((start, end))
    return merged


def length_outside(span: tuple[float, float], by: list[tuple[float, float]]) -> float:
    """Return the length of ``span`` outside of the sorted intervals ``by``."""
    start, end = span
    return end - start - sum(max(0.0, min(end, b) - max(start, a)) for a, b in by if b > start and a < end)
