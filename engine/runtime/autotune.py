"""Autotuner: time the candidates of a choice on the GPU; cache the timings on disk.

Inputs are random tensors. Results are compared with those of the first candidate.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import json
import statistics
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import torch

from engine.cache.disk_store import DiskStore, DiskStoreError
from engine.errors import error_line
from engine.ir.kernels.lowered_program import CPU_TARGET, LoweredProgram, buffer_refs
from engine.ir.kernels.template_choice import ChoiceRequest, ChoiceResult
from engine.ir.loop_ir.index_expr import concrete_size, symbols_of
from engine.records.format_amounts import format_seconds
from engine.runtime.kernel_launchers import KernelBinder, gpu_launcher
from engine.runtime.program_executor import ProgramExecutor, Run
from engine.runtime.time_kernels import DeviceTimer, cold_cache_timer

QUICK_RUNS, THOROUGH_RUNS = 3, 11
"""Timed runs of each candidate in the first round, and of each finalist in the second."""
FINALISTS = 3
MAX_TIME_RATIO = 0.98
"""Ratio of times below which a candidate replaces the default (candidate 0)."""
BUILD_THREADS = 8
"""Threads that compile candidates."""
MAX_RELATIVE_ERROR = 0.05
"""Maximum error of a candidate, relative to the largest result of the default."""
MAX_SECONDS = 120.0
"""Seconds of timing per graph; after that the default candidate is chosen."""


@dataclass
class Autotuner:
    """Chooses the fastest candidate by timing.

    ``on_progress`` receives progress messages. Once ``stop`` is set, nothing is timed and the default is chosen.
    """

    device: str
    timer: DeviceTimer
    bind: KernelBinder = gpu_launcher
    store: DiskStore | None = None
    on_progress: Callable[[str], None] = lambda sentence: None
    stop: threading.Event = field(default_factory=threading.Event)
    max_seconds: float = MAX_SECONDS
    finalists: int = FINALISTS
    typical: Callable[[Sequence[float]], float] = statistics.median
    """Returns one time of several runs."""
    failures: dict[int, str] = field(default_factory=dict)
    """Why a program of the last measurement has no time, by its number."""
    _seconds_spent: float = 0.0
    _choice_count: int = 0

    def choose(self, question: ChoiceRequest) -> ChoiceResult:
        """Return the fastest candidate, from the disk cache or from a new measurement."""
        if len(question.candidates) < 2:
            return ChoiceResult(0)
        self._choice_count += 1
        programs = [candidate.make() for candidate in question.candidates]
        if not all(_has_known_sizes(p, question.size_hints) for p in programs):
            return ChoiceResult(0, reason="Its sizes are symbolic without size hints, so nothing was measured.")
        key = _tuning_key(programs, self.device, question.size_hints)
        stored_times = self._load_times(key, len(programs))
        if stored_times is not None:
            return self._choose_fastest(question, stored_times, is_known=True)
        if self.stop.is_set() or self._seconds_spent > self.max_seconds:
            return ChoiceResult(0, reason="The measurement was cancelled or over its time limit; the default is used.")
        started = time.perf_counter()
        self.on_progress(f"tuning {self._choice_count}: {len(programs)} ways to compute {question.node}")
        try:
            seconds = self.time_candidates(programs, question.size_hints)
        except torch.OutOfMemoryError:
            return ChoiceResult(0, reason="The GPU has no memory to measure other candidates; the default is used.")
        finally:
            self._seconds_spent += time.perf_counter() - started
        if not self.stop.is_set():
            self._store_times(key, seconds)
        return self._choose_fastest(question, seconds)

    def _choose_fastest(
        self, question: ChoiceRequest, seconds: Sequence[float | None], *, is_known: bool = False
    ) -> ChoiceResult:
        default_seconds = seconds[0]
        other_times = [(s, n) for n, s in enumerate(seconds) if n and s is not None]
        if not other_times or default_seconds is None:
            return ChoiceResult(0, tuple(seconds), "No other candidate could be measured.", is_known, self.device)
        best, at = min(other_times)
        chosen = at if best < MAX_TIME_RATIO * default_seconds else 0
        label = question.candidates[at].label.removeprefix("template ").removeprefix("blocks of ")
        first = f"{question.default_text} takes {format_seconds(default_seconds, 3)}"
        second = f"{question.template_text} {format_seconds(best, 3)} ({label})"
        when = "Measured before on" if is_known else "Measured on"
        reason = f"{when} {self.device}{_sizes_text(question)}: {first}, {second}."
        return ChoiceResult(chosen, tuple(seconds), reason, is_known, self.device)

    def time_candidates(self, programs: Sequence[LoweredProgram], sizes: Mapping[str, int]) -> list[float | None]:
        """Return the seconds of each program; None if it fails, or differs from the first one."""
        random_inputs = {name: value for p in programs for name, value in _random_inputs(p, sizes).items()}
        # A new thread starts on device 0, so the current device is passed to it.
        device = torch.cuda.current_device() if torch.cuda.is_available() else None
        with ThreadPoolExecutor(BUILD_THREADS, thread_name_prefix="engine-tune") as pool:
            runs = list(pool.map(functools.partial(self._build, device=device), programs))
        self.failures = {n: reason for n, (_, reason) in enumerate(runs) if reason}
        works: list[Callable[[], Any] | None] = []
        expected: dict[str, Any] = {}
        for number, (program, (run, _)) in enumerate(zip(programs, runs, strict=True)):
            work = None if run is None else _bind_inputs(run, [random_inputs[name] for name in program.inputs])
            if work is not None and (reason := self._why_wrong(program, work, expected)):
                self.failures[number], work = reason, None
            works.append(work)
        quick_times = [None if w is None or self.stop.is_set() else self._time(w, QUICK_RUNS) for w in works]
        best = sorted((s, n) for n, s in enumerate(quick_times) if s is not None)[: self.finalists]
        last = [(n, work) for n in sorted({0, *(n for _, n in best)}) if (work := works[n]) is not None]
        times: dict[int, list[float]] = {n: [] for n, _ in last}
        for _ in range(THOROUGH_RUNS):  # interleaved, because a GPU that gets warm slows down every candidate
            for n, work in last:
                if not self.stop.is_set():
                    times[n].append(self.timer(work))
        return [self.typical(times[n]) if times.get(n) else s for n, s in enumerate(quick_times)]

    def _build(self, program: LoweredProgram, device: int | None) -> tuple[Run | None, str]:
        """Return the executor of a candidate, or None and why it cannot be built for this device."""
        try:
            with contextlib.nullcontext() if device is None else torch.cuda.device(device):
                return ProgramExecutor(program, self.bind), ""
        except Exception as error:
            return None, f"it cannot be built: {error_line(error.__cause__ or error)}"

    def _why_wrong(self, program: LoweredProgram, work: Callable[[], Any], expected: dict[str, Any]) -> str:
        """Return why a candidate is rejected; empty if its results are close to the first one's."""
        try:
            results = dict(zip((r.buffer for r in buffer_refs(program.outputs)), work(), strict=True))
        except torch.OutOfMemoryError:
            raise
        except Exception as error:
            return f"it fails: {error_line(error)}"
        if not expected:
            expected.update(results)
        is_close = all(_is_close(results[name], expected[name]) for name in results.keys() & expected.keys())
        return "" if is_close else "its results differ from those of the default"

    def _time(self, work: Callable[[], Any], times: int) -> float:
        return self.typical([self.timer(work) for _ in range(times)])

    def _load_times(self, key: str, ways: int) -> list[float | None] | None:
        """Return the timings that an earlier process stored; None if there are no valid ones."""
        if self.store is None:
            return None
        try:
            text = self.store.get(key)
            times = None if text is None else json.loads(text)
        except (DiskStoreError, ValueError):
            return None
        if not isinstance(times, list) or len(times) != ways:
            return None
        is_usable = all(s is None or (type(s) is float and 0 < s < 1e3) for s in times)
        return times if is_usable else None

    def _store_times(self, key: str, seconds: Sequence[float | None]) -> None:
        if self.store is None:
            return
        try:
            self.store.put(key, json.dumps(list(seconds)))
        except DiskStoreError:  # the next process measures again
            return


def make_autotuner(
    store: DiskStore | None,
    on_progress: Callable[[str], None] = lambda sentence: None,
    stop: threading.Event | None = None,
) -> Autotuner:
    """Return an autotuner for the current GPU; ``store`` holds earlier choices."""
    name = torch.cuda.get_device_name()
    return Autotuner(name, cold_cache_timer(), store=store, on_progress=on_progress, stop=stop or threading.Event())


def _bind_inputs(run: Run, inputs: list[Any]) -> Callable[[], Any]:
    return lambda: run(*inputs)


def _has_known_sizes(program: LoweredProgram, sizes: Mapping[str, int]) -> bool:
    """Return True if every symbol of the program's sizes has a source and a size hint."""
    used = symbols_of(s for b in program.buffers.values() for s in (*b.shape, *b.stride))
    return used <= program.symbol_sources.keys() & sizes.keys()


def _sizes_text(question: ChoiceRequest) -> str:
    used = sorted(
        {s for candidate in question.candidates[:1] for s in candidate.make().symbol_sources}
        & question.size_hints.keys()
    )
    return f" for {', '.join(f'{s} = {question.size_hints[s]}' for s in used)}" if used else ""


def _random_inputs(program: LoweredProgram, sizes: Mapping[str, int]) -> dict[str, torch.Tensor]:
    """Return random inputs for the program; integer inputs are zero, a valid index everywhere."""
    on_gpu = torch.cuda.is_available() and program.target != CPU_TARGET
    generator = torch.Generator("cuda" if on_gpu else "cpu").manual_seed(0)
    tensors: dict[str, torch.Tensor] = {}
    for name in program.inputs:
        buffer = program.buffers[name]
        shape, stride = ([concrete_size(s, sizes.__getitem__) for s in side] for side in (buffer.shape, buffer.stride))
        value = torch.empty_strided(shape, stride, dtype=buffer.dtype, device=generator.device)
        tensors[name] = value.normal_(generator=generator) if buffer.dtype.is_floating_point else value.zero_()
    return tensors


def _is_close(actual: torch.Tensor, expected: torch.Tensor) -> bool:
    if not expected.is_floating_point() or not expected.numel():
        return torch.equal(actual, expected)
    actual, expected = actual.float(), expected.float()
    off = (actual - expected).abs().max()
    return bool(off <= MAX_RELATIVE_ERROR * expected.abs().max().clamp(min=1e-6))


def _tuning_key(programs: Sequence[LoweredProgram], device: str, sizes: Mapping[str, int]) -> str:
    """Return a digest of all that timings depend on: kernels, device, versions, size hints."""
    import triton

    versions = [torch.__version__, str(torch.version.cuda), triton.__version__]
    used = sorted((s, sizes[s]) for s in {s for p in programs for s in p.symbol_sources})
    parts = [device, *versions, [_program_fingerprint(p) for p in programs], used]
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()


def _program_fingerprint(program: LoweredProgram) -> list[Any]:
    steps = [step.fingerprint() for step in program.steps]
    buffers = [[n, str(b.dtype), str(b.shape), str(b.stride), b.kind] for n, b in sorted(program.buffers.items())]
    return [steps, buffers]
