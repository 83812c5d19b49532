"""Records of kernels: listings per target, resources, verification, timing."""

from __future__ import annotations

from engine.records.base import Record
from engine.records.bytecode import Span


class LineLink(Record):
    """Provenance of one line of a listing; lines count from 1.

    ``triton_line``: line of the kernel's text, in Triton or LLVM IR (0: none). ``library``: chain of library functions it
    was inlined through, outermost first (``standard.py:282 softmax``). ``label``: why it has no Triton line
    ("generated: prologue").
    ``ptx_line``: line of the PTX listing that a SASS line was assembled from (0: none, or another listing).
    """

    line: int
    triton_line: int = 0
    library: tuple[str, ...] = ()
    label: str = ""
    ptx_line: int = 0


class Listing(Record):
    """Listing of one stage for one target.

    "ttir", "ttgir", "llir", "ptx", "sass" or "amdgcn"; for a CPU "llopt" (optimized LLVM IR) and "asm".
    """

    stage: str
    text: str
    links: tuple[LineLink, ...] = ()
    instructions: int = 0
    """Number of lines that are instructions (no labels, directives, comments or padding)."""
    linked: int = 0
    """Number of instructions with a Triton line."""
    labelled: int = 0
    """Number of the other instructions that have a label."""


class KernelResources(Record):
    """Resource use of a kernel on a target.

    ``occupancy``: fraction of the target's maximum warps per multiprocessor; None if unknown. ``limit``: what
    limits it: "registers", "shared memory", "blocks" or "warps" (per multiprocessor). On a CPU, ``spills`` and
    ``reloads`` are instructions that store a register to the stack and load it back.
    """

    registers: int | None = None
    spills: int | None = None
    shared_bytes: int | None = None
    warps: int | None = None
    occupancy: float | None = None
    limit: str = ""
    reloads: int | None = None
    cpu: str = ""
    """CPU that the code is for: ``znver4 (x86-64, AVX-512)``; empty for a GPU."""
    vector_bits: int | None = None
    """Bits of the widest vector registers that a CPU kernel uses; 0 for none."""
    lanes: int | None = None
    """Elements that a CPU kernel computes at once."""
    instruction_mix: dict[str, int] | None = None
    """Number of instructions of each kind in a CPU kernel."""


class TargetRecord(Record):
    """One kernel compiled for one target: "cuda:90", or "cpu" for the recording machine.

    ``seconds`` is the compile time; ``error`` is the message of a failed compile.
    """

    target: str
    listings: tuple[Listing, ...] = ()
    resources: KernelResources | None = None
    seconds: float = 0.0
    error: str = ""
    smaller_blocks_note: str = ""
    """Reason and values of smaller blocks than the launch arguments have; empty if not needed."""


class VerifyRecord(Record):
    """Verification of a kernel: its results on the call's inputs compared with ATen's.

    ``outcome`` is "equal", "close", "different" or "not verifiable"; ``max_error`` the largest absolute
    difference.
    """

    outcome: str
    where: str
    max_error: float | None = None
    tolerance: float | None = None
    note: str = ""


class KernelTimingRecord(Record):
    """Timing of a kernel on ``device``: median ``seconds`` of a launch.

    A GPU's cache is cold. A CPU's has the data of the launch before, and the fastest of several launches counts. ``copy_rate``: copy bandwidth of the same device
    in bytes per second, reads and writes together.
    """

    device: str
    seconds: float
    copy_rate: float | None = None
    launches: int = 1
    """Number of launches in one call that the median is over; their sizes may differ."""


class TuningControl(Record):
    """One setting of a kernel: its name, the values that can be tried, and the default."""

    name: str
    values: tuple[int, ...]
    default: int


class TuningPoint(Record):
    """Settings of a kernel that were tried, with the time.

    Where the kernel cannot run they have its resources; ``problem`` is why there is neither.
    """

    values: dict[str, int]
    seconds: float | None = None
    resources: KernelResources | None = None
    problem: str = ""

    def __str__(self) -> str:
        names = ", ".join(f"{n} {v}" for n, v in self.values.items())
        if self.problem or self.seconds is not None:
            return f"{names}: {self.problem or f'{(self.seconds or 0.0) * 1e6:.1f} µs'}"
        resources = self.resources or KernelResources()
        occupancy = "" if resources.occupancy is None else f", occupancy {resources.occupancy:.0%}"
        return f"{names}: {resources.registers} registers, {resources.spills} spills{occupancy}"


class TuningRecord(Record):
    """Settings of a kernel that were tried by hand; ``device`` is empty if nothing could run.

    ``chosen``: the settings that later compiles use.
    """

    controls: tuple[TuningControl, ...]
    points: tuple[TuningPoint, ...] = ()
    device: str = ""
    chosen: dict[str, int] | None = None


class LoopOp(Record):
    """One loop-IR op: ``id`` is ``loop:0/0:k0:5``, ``origins`` are ids of ATen nodes."""

    id: str
    text: str
    origins: tuple[str, ...] = ()


class LaunchRecord(Record):
    """One launch of a kernel: buffers by parameter name, ids of the ATen nodes it computes."""

    buffers: dict[str, str] | None = None
    nodes: tuple[str, ...] = ()


class LaunchGroup(Record):
    """Launches of one kernel with equal arguments and grid, from one call of the user's code.

    ``arguments``: shapes and numbers by parameter name. ``seconds`` and ``fastest``: all launches and the fastest one;
    None inside a CUDA graph. ``is_replay``: launched by a replay of a CUDA graph.
    """

    compilation: str
    kernel: str
    arguments: dict[str, str]
    grid: tuple[int, ...]
    caller: Span | None = None
    count: int = 0
    seconds: float | None = None
    fastest: float | None = None
    is_replay: bool = False


class KernelRecord(Record):
    """One generated kernel.

    ``line_ops[i]``: ids of the loop ops of line i + 1 of ``text``. ``bytes_moved`` and ``flops``: estimates
    from the loop IR, for the call that was compiled.
    """

    id: str
    name: str
    text: str
    line_ops: tuple[tuple[str, ...], ...] = ()
    ops: tuple[LoopOp, ...] = ()
    grid: str = ""
    launch_args: dict[str, str] | None = None
    """Launch arguments by parameter name: sizes, block sizes, num_warps."""
    bytes_moved: int | None = None
    flops: int | None = None
    fused_nodes: tuple[str, ...] = ()
    """Ids of the ATen nodes fused into it."""
    targets: tuple[TargetRecord, ...] = ()
    verify: VerifyRecord | None = None
    language: str = "triton"
    """Language of ``text``: "triton", or "llvm" for a CPU kernel.

    "cpp" for observed Inductor on a CPU.
    """
    launches: tuple[LaunchRecord, ...] = ()
    """Launches in order; kernels with equal loops are one kernel.

    ``fused_nodes`` and the provenance of the ops cover all launches.
    """
    measured: KernelTimingRecord | None = None
    tuning: TuningRecord | None = None
    bytes_expression: str = ""
    flops_expression: str = ""
    size_hints: dict[str, int] | None = None
    """Values of the symbols in both expressions, which are empty if sizes are static."""

    @property
    def is_hand_written(self) -> bool:
        """True for a kernel of the user's own code, which a call launches."""
        return self.id.startswith("u")
