"""Records of lowering: fusion decisions, ATen calls, memory, autotuning."""

from __future__ import annotations

from typing import ClassVar

from engine.records.base import Record
from engine.records.graph import PassRecord
from engine.records.kernels import KernelRecord


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


class ExternCall(Record):
    """An ATen call in the lowered program.

    It is a library matmul, a convolution, or an op without lowering. ``node`` is the ATen node's id.
    """

    OMITTED_IF_EMPTY: ClassVar[tuple[str, ...]] = ("text",)

    node: str
    op: str
    reason: str
    is_library: bool = False
    """True for a vendor library call that is preferred, False for a missing lowering."""
    kind: str = ""
    """Stable id of the reason in the catalog of fallbacks."""
    hint: str = ""
    """Advice for the user; empty for a library call."""
    text: str = ""
    """Triton kernels of a ``triton_op`` whose own code for the device runs instead."""


class BufferReuse(Record):
    """A buffer that reuses the memory of ``reused``, with the reason.

    ``bytes_saved``: memory that is not allocated.
    """

    buffer: str
    reused: str
    bytes_saved: int
    reason: str


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


class MemoryStep(Record):
    """One kernel launch or ATen call, with its nodes and the bytes live while it runs."""

    name: str
    nodes: tuple[str, ...]
    live_bytes: int


class MemoryBlock(Record):
    """One tensor in memory, from step ``first`` to step ``last``, which count from 0.

    ``kind`` is "input" (the caller holds it), "saved" (a backward's input that its forward saved), "tangent",
    "intermediate" or "output". ``node`` is the id of the ATen node that computes it; empty for an input.
    """

    OMITTED_IF_EMPTY: ClassVar[tuple[str, ...]] = ("unknown_bytes",)

    name: str
    bytes: int
    kind: str
    first: int
    last: int
    node: str = ""
    unknown_bytes: str = ""
    """Its bytes as an expression of symbols that only a run gives; ``bytes`` is then 0."""


class MemoryRecord(Record):
    """Live memory of a program, at the sizes of the compiled call.

    Inputs that the caller holds are listed, but do not count. Temporary memory inside ATen calls is unknown.
    """

    stage: str
    """"call", or "forward" or "backward" of a training call."""
    steps: tuple[MemoryStep, ...] = ()
    blocks: tuple[MemoryBlock, ...] = ()

    @property
    def peak_step(self) -> int:
        """The first step with the most live bytes; -1 without steps."""
        return max(range(len(self.steps)), key=lambda n: self.steps[n].live_bytes, default=-1)

    @property
    def peak_bytes(self) -> int:
        """The most bytes that are live at once."""
        return max((step.live_bytes for step in self.steps), default=0)

    def live_blocks(self, step: int) -> list[MemoryBlock]:
        """Return the blocks that count at a step, largest first."""
        live = [b for b in self.blocks if b.first <= step <= b.last and b.kind != "input" and b.bytes]
        return sorted(live, key=lambda b: -b.bytes)


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
    memory: tuple[MemoryRecord, ...] = ()
    """Live memory of the forward, then of the backward."""
    autotune_choices: tuple[AutotuneChoice, ...] = ()
    """Settings of kernels that were tuned by hand."""
    later_calls: str = ""
    """Reason why calls (or those after the first backward) run as traced; or empty."""


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
    """The program that computed the results on the CPU, if one did."""
    memory: MemoryRecord | None = None
    """Live memory of the program; None if no program was recorded."""
