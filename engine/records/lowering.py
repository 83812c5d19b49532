"""From ATen to loops: what was fused, what was not and why, what was left to ATen."""

from __future__ import annotations

from dataclasses import dataclass

from engine.records.base import Record
from engine.records.graph import PassRecord


@dataclass(frozen=True, slots=True)
class LoopOp(Record):
    """One operation of the loop IR. ``id`` is ``loop:0/0:k0:5``; ``origins`` are ids of ATen nodes."""

    id: str
    text: str
    origins: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class FusionDecision(Record):
    """The scheduler looked at two groups of nodes and fused them, or did not.

    ``bytes_saved`` is memory traffic that fusing spares, ``bytes_moved`` what not fusing costs: a tensor written and read. None where sizes
    are symbols, or for the other outcome.
    """

    first: tuple[str, ...]
    second: tuple[str, ...]
    fused: bool
    reason: str
    bytes_saved: int | None = None
    bytes_moved: int | None = None


@dataclass(frozen=True, slots=True)
class ExternCall(Record):
    """An ATen call kept as it is (library matmul, convolution, or an operator without a lowering). ``node`` is the ATen node's id."""

    node: str
    op: str
    reason: str
    is_library: bool = False
    """True where a vendor library is the right choice, False where a lowering is missing."""


@dataclass(frozen=True, slots=True)
class BufferReuse(Record):
    """A tensor of the program that takes over the memory of another, ``reused``, and why. ``bytes_saved`` is memory not asked for."""

    buffer: str
    reused: str
    bytes_saved: int
    reason: str


@dataclass(frozen=True, slots=True)
class AutotuneChoice(Record):
    """Of several ways to compute ``nodes`` one was ``taken``; ``ways`` are all with the seconds that each took (None: not measured)."""

    nodes: tuple[str, ...]
    chosen: str
    reason: str
    candidates: tuple[tuple[str, float | None], ...] = ()
    device: str = ""
    from_disk_cache: bool = False
    """It was measured by an earlier process, and read from disk."""


@dataclass(frozen=True, slots=True)
class LoweringRecord(Record):
    """The whole of one graph's lowering. Counts are of ATen nodes that compute (placeholders, outputs and getitems left out)."""

    target: str
    decisions: tuple[FusionDecision, ...] = ()
    externs: tuple[ExternCall, ...] = ()
    lowered: int = 0
    total: int = 0
    wrapper_text: str = ""
    """The program that calls kernels and externs in order, as Python."""
    launch_mode: str = ""
    """How its kernels are launched, where that was asked for: recorded and replayed as one, or one by one and why."""
    error: str = ""
    """Why this graph was not lowered at all (results come from ATen)."""
    reuses: tuple[BufferReuse, ...] = ()
    passes: tuple[PassRecord, ...] = ()
    """Rewrites of the ATen graph before it became loops, in order."""
    autotune_choices: tuple[AutotuneChoice, ...] = ()
    """Where a template could do what a library does: which was taken."""
    cache: str = ""
    """Whether the program was read from disk or kept there, or why not; empty where nothing is kept."""
