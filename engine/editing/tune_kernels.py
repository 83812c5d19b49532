"""Tune a kernel by hand: time it with other block sizes, warps, stages or vectors."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import torch

from engine import session_jobs
from engine.backends.cpu_executor import CpuLowering
from engine.backends.lower_to_program import lower_to_program
from engine.backends.stored_tunings import device_name, store_tuning
from engine.errors import BadArgument, KernelBuildError
from engine.find_compilation import find_compilation
from engine.ir.kernels.lowered_program import CPU_TARGET, LoweredProgram
from engine.ir.loop_ir.loop_kernel import LoopKernel
from engine.ir.node_values import tensors_in
from engine.kernels.print_kernel import print_kernel
from engine.kernels.tuning_controls import all_values, controls_of, with_values
from engine.lowering.choose_blocks import benchmark_program, why_not_measurable
from engine.records.kernels import TargetRecord, TuningControl, TuningPoint, TuningRecord
from engine.records.session import CompilationRecord, Session
from engine.runtime.autotune import Autotuner, make_autotuner
from engine.runtime.cpu_launcher import cpu_launcher
from engine.runtime.time_cpu_kernels import seconds_of
from engine.runtime.workers.compile_jobs import submit_compile_job
from engine.session_jobs import LoweredGraph

MAX_POINTS = 64
"""Most settings that one call tries."""


@dataclass(frozen=True)
class Tuning:
    """Result of ``engine.tune``: a kernel of a session, and the settings that were tried."""

    session: Session
    compilation: str
    kernel: str
    target: str
    loops: LoopKernel
    usual_seconds: float | None = None
    """The time of the default settings."""

    @property
    def record(self) -> TuningRecord:
        """The record in the session, which also holds the points of earlier calls."""
        compilation = self.session.compilation(self.compilation)
        kernels = (*compilation.cpu_kernels, *compilation.kernels)
        return next((k.tuning for k in kernels if k.id == self.kernel and k.tuning), TuningRecord(()))

    @property
    def controls(self) -> tuple[TuningControl, ...]:
        """The settings of the kernel: name, values to try, default."""
        return self.record.controls

    @property
    def points(self) -> tuple[TuningPoint, ...]:
        """The settings that were tried, with times."""
        return self.record.points

    @property
    def best(self) -> TuningPoint | None:
        """The fastest settings; None if nothing was measured."""
        timed = [p for p in self.points if p.seconds is not None]
        return min(timed, key=lambda p: p.seconds or 0.0, default=None)

    def keep(self, values: Mapping[str, int] | None = None) -> TuningPoint:
        """Store settings, by default the best, for later compiles of the kernel.

        Later processes use them, too.

        Raises:
            BadArgument: nothing was measured and no values are given, or they were not tried, or failed.
        """
        point = self.best
        if values is not None:
            complete = all_values(self.loops, self.target, values)
            point = next((p for p in self.points if p.values == complete), None)
        if point is None or point.problem:
            raise BadArgument(
                "These settings were not measured, or failed: choose settings that were tried and worked."
            )
        store_tuning(self.loops, self.target, point.values, point.seconds, self.usual_seconds)
        self._update_record(replace(self.record, chosen=point.values))
        return point

    def forget(self) -> None:
        """Let later compiles of the kernel use the default settings again."""
        store_tuning(self.loops, self.target, {}, None, None)
        self._update_record(replace(self.record, chosen=None))

    def _update_record(self, record: TuningRecord) -> None:
        def changed(compilation: CompilationRecord) -> CompilationRecord:
            return session_jobs.with_kernels(
                compilation, lambda k: replace(k, tuning=record) if k.id == self.kernel else k
            )

        self.session.update_compilation(self.compilation, changed)

    def add(self, points: Sequence[TuningPoint], device: str) -> None:
        """Add points to the record; they replace earlier ones of the same settings."""
        record = self.record
        points_by_values = {tuple(p.values.values()): p for p in (*record.points, *points)}
        controls = controls_of(self.loops, self.target)
        self._update_record(replace(record, controls=controls, points=tuple(points_by_values.values()), device=device))

    def __repr__(self) -> str:
        measured = "" if self.best else " (not measured: it cannot run here)"
        lines = [f"  {'*' if p is self.best else ' '} {p}" for p in self.points]
        return "\n".join([f"{self.kernel} for {self.target}{measured}:", *lines])


def tune(session: Session, compilation: str, kernel: str, values: Mapping[str, Sequence[int]] | None = None) -> Tuning:
    """Time a kernel of a live session with other settings, on random inputs.

    On a GPU the settings are block sizes (BLOCK, ROWS, COLS, INNER), num_warps and num_stages; on
    the CPU vector_bits, and vectors for each iteration. Results are compared with those of the default. Without a
    GPU, a Triton kernel is only compiled: its points have registers, spills and occupancy. The points are also in
    the session, at the kernel.

    Args:
        session: recorded in this process.
        compilation: id of the compilation ("0/0").
        kernel: id of the kernel ("k0", "c0").
        values: values to try by control, of those that it offers; others keep their default. Default: all values of the
            first two controls.

    Raises:
        BadArgument: there is no such kernel, control or value, or the kernel cannot be tuned; the message says why.
    """
    lowered, loops = _loops_of(session, compilation, kernel)
    target = lowered.program.target
    controls = controls_of(loops, target)
    if why := why_not_measurable(loops) if controls else "it has no settings":
        raise BadArgument(f"{kernel} cannot be tuned: {why}.")
    tried = {c.name: c.values for c in controls[:2]} if values is None else {n: tuple(v) for n, v in values.items()}
    if unknown := tried.keys() - {c.name for c in controls}:
        raise BadArgument(
            f"{kernel} has no setting {min(unknown)!r}: choose from {', '.join(c.name for c in controls)}."
        )
    if any(type(v) is not int for chosen in tried.values() for v in chosen):
        raise BadArgument("The values to try must be integers.")
    if (count := math.prod(map(len, tried.values()))) > MAX_POINTS:
        raise BadArgument(f"These are {count} settings: try at most {MAX_POINTS} at once.")
    settings = [
        all_values(loops, target, dict(zip(tried, chosen, strict=True)))
        for chosen in itertools.product(*tried.values())
    ]
    session.set_stage(f"tune {kernel}")
    try:
        default_seconds, points = _measure(loops, target, settings)
    finally:
        session.set_stage("")
    tuning = Tuning(session, compilation, kernel, target, loops, default_seconds)
    tuning.add(points, "" if default_seconds is None else device_name(target))
    return tuning


def _loops_of(session: Session, compilation: str, kernel: str) -> tuple[LoweredGraph, LoopKernel]:
    """Return the loops of a kernel with default settings, by lowering its graph once more.

    Raises:
        BadArgument: there is no such kernel, or it has no loops.
    """
    find_compilation(session, compilation)
    graphs = session_jobs.lowered_graphs_of(session).get(compilation, ())
    for lowered in graphs:
        printed = next((k for k in lowered.program.kernels if k.id == kernel), None)
        if printed is None:
            continue
        captured: list[LoopKernel] = []
        target = lowered.program.target
        if target == CPU_TARGET:
            CpuLowering(lowered.graph, captured.append).program()
        else:
            options = replace(graphs[0].options, target=target)
            on_gpu = any(x.is_cuda for x in tensors_in(lowered.inputs))
            lower_to_program(lowered.graph, options, None, {}, on_gpu=on_gpu, find_tuning=captured.append)
        same = [loops for loops in captured if loops.nodes == printed.nodes]
        if same:
            return lowered, replace(same[-1], name=printed.name)
        raise BadArgument(f"{kernel} cannot be tuned: it has no loops of its own.")
    names = ", ".join(k.id for lowered in graphs for k in lowered.program.kernels)
    advice = f"choose one of {names}" if names else "record the call in this process"
    raise BadArgument(f"There is no live kernel {kernel!r} of {compilation}: {advice}.")


def _measure(
    loops: LoopKernel, target: str, settings: Sequence[dict[str, int]]
) -> tuple[float | None, tuple[TuningPoint, ...]]:
    """Return the time of the default settings, and a point for each of the others."""
    programs = [benchmark_program(loops, print_kernel, target)]
    if programs[0].symbol_sources:
        raise BadArgument("The kernel has symbolic sizes: record it with dynamic=False to tune it.")
    points: list[TuningPoint] = []
    for values in settings:
        try:
            programs.append(benchmark_program(with_values(loops, target, values), print_kernel, target))
            points.append(TuningPoint(values))
        except (BadArgument, KernelBuildError) as error:
            points.append(TuningPoint(values, problem=f"not possible: {str(error).rstrip('.')}"))
    if target != CPU_TARGET and not torch.cuda.is_available():
        return None, _with_resources(points, programs[1:], target)
    tuner = Autotuner("this CPU", seconds_of, cpu_launcher) if target == CPU_TARGET else make_autotuner(None)
    # Other processes only add to a time on the CPU.
    tuner = replace(tuner, finalists=len(programs), typical=min if target == CPU_TARGET else tuner.typical)
    seconds = tuner.time_candidates(programs, {})
    results = iter([(s, tuner.failures.get(n, "")) for n, s in enumerate(seconds)][1:])
    return seconds[0], tuple(p if p.problem else _with_time(p, *next(results)) for p in points)


def _with_time(point: TuningPoint, seconds: float | None, problem: str) -> TuningPoint:
    return replace(point, seconds=seconds, problem=problem)


def _with_resources(
    points: Sequence[TuningPoint], programs: Sequence[LoweredProgram], target: str
) -> tuple[TuningPoint, ...]:
    """Compile each program's kernel for a GPU that is not here."""
    kernels = [replace(p.kernels[0], id=str(n), fallback_configs=()) for n, p in enumerate(programs)]
    targets: dict[str, TargetRecord] = {}
    submit_compile_job(kernels, target, targets.__setitem__).wait()
    records = iter([targets.get(k.id) for k in kernels])
    return tuple(p if p.problem else _with_compile_result(p, next(records)) for p in points)


def _with_compile_result(point: TuningPoint, record: TargetRecord | None) -> TuningPoint:
    if record is None or record.error:
        return replace(point, problem=record.error if record is not None else "it was not compiled")
    return replace(point, resources=record.resources)
