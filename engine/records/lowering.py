"""Records of lowering: fusion decisions, ATen calls, buffer reuse, autotuning."""

from __future__ import annotations

from dataclasses import dataclass

from engine.records.base import Record
from engine.records.graph import PassRecord
from engine.records.kernels import KernelRecord


@dataclass(frozen=True, slots=True)
class FusionDecision(Record):
    """Decision of the scheduler to fuse two groups of nodes, or not.

    ``bytes_saved``: memory traffic that the fusion saves. ``bytes_moved``: traffic without it (a tensor
    written and read). None for symbolic sizes, or for the other outcome.
    """

    first: tuple[str, ...]
    second: tuple[str, ...]
    fused: bool
    reason: str
    bytes_saved: int | None = None
    bytes_moved: int | None = None


@dataclass(frozen=True, slots=True)
class ExternCall(Record):
    """An ATen call in the lowered program.

    It is a library matmul, a convolution, or an op without lowering. ``node`` is the ATen node's id.
    """

    node: str
    op: str
    reason: str
    is_library: bool = False
    """True for a vendor library call that is preferred, False for a missing lowering."""
    kind: str = ""
    """Stable id of the reason in the catalog of fallbacks."""
    hint: str = ""
    """Advice for the user; empty for a library call."""


@dataclass(frozen=True, slots=True)
class BufferReuse(Record):
    """A buffer that reuses the memory of ``reused``, with the reason.

    ``bytes_saved``: memory that is not allocated.
    """

    buffer: str
    reused: str
    bytes_saved: int
    reason: str


@dataclass(frozen=True, slots=True)
class AutotuneChoice(Record):
    """An autotuning choice for ``nodes``: the ``chosen`` candidate, and all candidates.

    ``candidates`` have the time of each in seconds (None: not measured).
    """

    nodes: tuple[str, ...]
    chosen: str
    reason: str
    candidates: tuple[tuple[str, float | None], ...] = ()
    device: str = ""
    from_disk_cache: bool = False
    """True if an earlier process measured the times and stored them on disk."""


@dataclass(frozen=True, slots=True)
class CpuProgramRecord(Record):
    """Programs of a compilation's graphs that ran on the CPU of the recording machine.

    The ids of its kernels start with "c", those of a backward with "bc". ``decisions`` and ``externs`` are those of the
    forward, then of the backward.
    """

    kernels: tuple[KernelRecord, ...] = ()
    decisions: tuple[FusionDecision, ...] = ()
    externs: tuple[ExternCall, ...] = ()
    has_backward: bool = False
    reason: str = ""
    """Reason why ATen computed the results of a graph on the CPU, in one sentence."""


@dataclass(frozen=True, slots=True)
class LoweringRecord(Record):
    """Lowering of one graph.

    Counts are of ATen nodes that compute (no placeholders, outputs or getitems).
    """

    target: str
    decisions: tuple[FusionDecision, ...] = ()
    externs: tuple[ExternCall, ...] = ()
    lowered: int = 0
    total: int = 0
    wrapper_text: str = ""
    """The Python program that launches kernels and calls ATen."""
    launch_mode: str = ""
    """CUDA graph status of the kernels, if CUDA graphs are enabled: recorded, or why not."""
    error: str = ""
    """Reason why the graph was not lowered at all (ATen computes the results)."""
    reuses: tuple[BufferReuse, ...] = ()
    passes: tuple[PassRecord, ...] = ()
    """Passes over the ATen graph before lowering, in order."""
    autotune_choices: tuple[AutotuneChoice, ...] = ()
    """Autotuning choices between templates and library calls."""
    cache: str = ""
    """Disk cache outcome of the program, or the reason; empty if the cache is off."""
    cpu: CpuProgramRecord | None = None
    """The program that computed the results on the CPU, beside kernels that a GPU would run."""
