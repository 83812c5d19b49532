"""Generated kernels and what the target's compiler made of them."""

from __future__ import annotations

from dataclasses import dataclass

from engine.records.base import Record
from engine.records.lowering import LoopOp


@dataclass(frozen=True, slots=True)
class LineLink(Record):
    """Where one line of a listing came from. Lines count from 1.

    ``triton_line`` is the line of the kernel's Triton text (0: none); ``library`` the chain of library functions it was inlined
    through, outermost first (``standard.py:282 softmax``); ``label`` says why there is no Triton line ("generated: prologue").
    ``ptx_line`` is the line of the PTX listing that a SASS line was assembled from (0: none, or another listing).
    """

    line: int
    triton_line: int = 0
    library: tuple[str, ...] = ()
    label: str = ""
    ptx_line: int = 0


@dataclass(frozen=True, slots=True)
class Listing(Record):
    """One stage's text for one target. ``stage`` is "ttir", "ttgir", "llir", "ptx", "sass" or "amdgcn"."""

    stage: str
    text: str
    links: tuple[LineLink, ...] = ()
    instructions: int = 0
    """How many lines are instructions (not labels, directives or comments)."""
    linked: int = 0
    """How many of those have a Triton line."""
    labelled: int = 0
    """How many of the rest have a label."""


@dataclass(frozen=True, slots=True)
class KernelResources(Record):
    """Per-kernel use of the target's resources. ``occupancy`` is a fraction of the target's warps; None where unknown.

    ``limit`` says what keeps it below one: "registers", "shared memory", "blocks" or "warps" (a multiprocessor holds only so many of them).
    """

    registers: int | None = None
    spills: int | None = None
    shared_bytes: int | None = None
    warps: int | None = None
    occupancy: float | None = None
    limit: str = ""


@dataclass(frozen=True, slots=True)
class TargetRecord(Record):
    """One kernel compiled for one target ("cuda:90"). ``error`` is a sentence when that failed; ``seconds`` is compile time."""

    target: str
    listings: tuple[Listing, ...] = ()
    resources: KernelResources | None = None
    seconds: float = 0.0
    error: str = ""
    smaller_blocks_note: str = ""
    """Why and how it was compiled in smaller blocks than its launch values say; empty where they fit."""


@dataclass(frozen=True, slots=True)
class VerifyRecord(Record):
    """The kernel was run (interpreter or GPU) on the call's inputs and compared with ATen.

    ``outcome`` is "equal", "close", "different" or "not verifiable"; ``max_error`` the largest absolute difference.
    """

    outcome: str
    where: str
    max_error: float | None = None
    tolerance: float | None = None
    note: str = ""


@dataclass(frozen=True, slots=True)
class KernelTimingRecord(Record):
    """One kernel was timed on ``device``: the median ``seconds`` of a launch that finds nothing in the card's cache.

    ``copy_bandwidth`` is what the same card copies, in bytes a second (read and written both counted).
    """

    device: str
    seconds: float
    copy_rate: float | None = None
    launches: int = 1
    """How many launches of one call the median is over; they may be of different sizes."""


@dataclass(frozen=True, slots=True)
class LaunchRecord(Record):
    """One launch of a kernel: the program's buffers by parameter name, and the ids of the ATen nodes that it computes."""

    buffers: dict[str, str] | None = None
    nodes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class KernelRecord(Record):
    """One Triton kernel. ``line_ops[i]`` are ids of the loop ops behind line i + 1 of ``text``.

    ``bytes_moved`` and ``flops`` are counted from the loop IR (an estimate), None for symbolic sizes.
    """

    id: str
    name: str
    text: str
    line_ops: tuple[tuple[str, ...], ...] = ()
    ops: tuple[LoopOp, ...] = ()
    grid: str = ""
    launch_args: dict[str, str] | None = None
    """Launch values by parameter name: sizes, block sizes, num_warps."""
    bytes_moved: int | None = None
    flops: int | None = None
    fused_nodes: tuple[str, ...] = ()
    """Ids of the ATen nodes that went into it."""
    targets: tuple[TargetRecord, ...] = ()
    verify: VerifyRecord | None = None
    language: str = "triton"
    """What ``text`` is written in: "triton", or "cpp" where Inductor was observed on a CPU."""
    launches: tuple[LaunchRecord, ...] = ()
    """Where it is launched, in order: kernels with equal loops are one. ``fused_nodes`` and the ops' origins are those of all launches."""
    measured: KernelTimingRecord | None = None
