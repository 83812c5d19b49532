"""Frozen data of a session: frames, compilations, and all that a saved session holds."""

from __future__ import annotations

from dataclasses import replace

from engine.records.aot import AotRecord, CallValuesRecord
from engine.records.autograd import BackwardCall, BackwardRecord
from engine.records.base import Record
from engine.records.bytecode import SourceFile, Span
from engine.records.graph import GraphRecord
from engine.records.guards import GuardsRecord, ObservedSymbolRecord
from engine.records.kernels import KernelRecord, LaunchGroup
from engine.records.lowering import CpuProgramRecord, LoweringRecord, MemoryRecord
from engine.records.ranks.groups import RankGroups
from engine.records.runtime import ArtifactRecord, CallRecord, DiskCacheRecord, SkippedRecord, StageFailure, Timing
from engine.records.trace import TraceRecord


class FrameRecord(Record):
    """One code object with a code cache: ``role`` is "root", "callee", "resume" or "cell".

    ``id`` is its number as text.
    """

    id: str
    name: str
    file: str
    first_line: int
    role: str = "root"
    parent: str = ""
    """For "resume": the frame that broke; for "callee": the frame that called it first."""
    resumes_after: Span | None = None
    launches: tuple[LaunchGroup, ...] = ()
    """Launches of its kernels, recorded on request."""


class CompilationRecord(Record):
    """One compilation of one frame: a new cache entry, or a fallback to Python.

    ``id`` is "frame/entry" ("0/1"). ``cause`` is the miss reason. ``graphs`` are in the order of the stages.
    """

    id: str
    frame: str
    cause: str
    inputs: dict[str, str] | None = None
    trace: TraceRecord | None = None
    guards: GuardsRecord | None = None
    graphs: tuple[GraphRecord, ...] = ()
    aot: AotRecord | None = None
    lowering: LoweringRecord | None = None
    kernels: tuple[KernelRecord, ...] = ()
    failures: tuple[StageFailure, ...] = ()
    timings: tuple[Timing, ...] = ()
    backend: str = ""
    backward_lowering: LoweringRecord | None = None
    """Lowering of the backward graph, once a backward has run.

    Its kernels are in ``kernels``, with ids that start with "b".
    """
    compiler: str = "engine"
    """"engine", or "torch" for an observed torch.compile."""
    restart_reasons: tuple[str, ...] = ()
    """Reasons of tracing restarts, in order."""
    observed_symbols: tuple[ObservedSymbolRecord, ...] = ()
    disk_caches: tuple[DiskCacheRecord, ...] = ()
    artifacts: tuple[ArtifactRecord, ...] = ()
    call_values: tuple[CallValuesRecord, ...] = ()
    """Values of small tensors at AOT wrapper boundaries.

    Recorded for the first calls at level "steps", or on request.
    """

    @property
    def cpu_program(self) -> CpuProgramRecord:
        """The program that computed the results on the CPU; empty if none did."""
        program = self.lowering.cpu if self.lowering is not None else None
        return program or CpuProgramRecord()

    @property
    def cpu_kernels(self) -> tuple[KernelRecord, ...]:
        """Kernels that computed the results on the CPU; empty if none did."""
        return self.cpu_program.kernels

    @property
    def memory(self) -> tuple[MemoryRecord, ...]:
        """Live memory of the programs that ran on the CPU, else of those for the target.

        The programs for the target also stand for a graph that ATen ran.
        """
        ran, lowerings = self.cpu_program.memory, (self.lowering, self.backward_lowering)
        planned = tuple(x.memory for x in lowerings if x is not None and x.memory is not None)
        return ran if len(ran) >= len(planned) else planned

    def with_cpu_program(self, program: CpuProgramRecord) -> CompilationRecord:
        """Return the compilation with another program for the CPU."""
        return replace(self, lowering=replace(self.lowering or LoweringRecord(""), cpu=program))


class SessionData(Record):
    """All data of a saved session."""

    version: int
    compiler: str
    versions: dict[str, str]
    target: str
    device: str
    level: str
    seconds: float
    files: tuple[SourceFile, ...]
    frames: tuple[FrameRecord, ...]
    compilations: tuple[CompilationRecord, ...]
    calls: tuple[CallRecord, ...]
    calls_dropped: int
    skipped: tuple[SkippedRecord, ...]
    failures: tuple[StageFailure, ...]
    notes: tuple[str, ...]
    artifacts: tuple[ArtifactRecord, ...] = ()
    backwards: tuple[BackwardRecord, ...] = ()
    backward_calls: tuple[BackwardCall, ...] = ()
    started_at: float = 0.0
    """Wall clock seconds of the session's start; 0 if unknown."""
    ranks: RankGroups | None = None
    """Ranks that this session was recorded by, if it is one of several."""
