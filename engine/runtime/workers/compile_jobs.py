"""Background compile jobs: compile kernels for targets in worker processes.

Results are delivered kernel by kernel, jobs can be cancelled, equal kernels compile once. Each kernel is delivered
twice: without SASS once it is compiled, then with SASS, which is disassembled in batches when the queue is empty.
"""

from __future__ import annotations

import importlib
import importlib.util
import logging
import os
import threading
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from engine.ir.kernels.compile_triton import CompileUnit, compile_unit_of
from engine.ir.kernels.generated_kernel import GeneratedKernel
from engine.process_state import make_lock
from engine.records.kernels import TargetRecord
from engine.runtime.workers.process_pool import COMPILER_IDLE_SECONDS, WorkerPool

OnDone = Callable[[str, TargetRecord], None]

# By name: stages do not import each other, and only the worker runs these functions.
COMPILE_TASK = "engine.kernels.compile_kernel:compile_unit"
ADD_SASS_TASK = "engine.kernels.compile_kernel:add_sass"
WARM_UP_TASK = "engine.kernels.compile_kernel:preload_triton"

PROCESSES = max(1, min(4, os.cpu_count() or 2))
TIMEOUT = 120.0
"""Seconds that one kernel may take."""
MAX_CACHED_RECORDS = 256
"""Maximum number of cached records of finished kernels."""
MAX_SASS_BATCH = 32
"""Maximum number of kernels disassembled in one batch."""

_log = logging.getLogger("engine")


class CompileJob:
    """Kernels compiled in the background for one target."""

    def __init__(self, on_done: OnDone, count: int) -> None:
        self._on_done = on_done
        self._kernels_left = count
        self._lock = make_lock()
        self._finished = threading.Event()
        self.is_cancelled = False
        if not count:
            self._finished.set()

    @property
    def done(self) -> bool:
        """True if every kernel is finished or the job was cancelled."""
        return self._finished.is_set()

    def wait(self, timeout: float | None = None) -> bool:
        """Wait for the end of the job; return False if ``timeout`` seconds passed first."""
        return self._finished.wait(timeout)

    def cancel(self) -> None:
        """Cancel the job: drop queued kernels and stop running ones.

        ``on_done`` is not called again, except for a call already in progress.
        """
        self.is_cancelled = True
        self._finished.set()
        _compiler.cancel_unwanted()

    def deliver(self, kernel: str, record: TargetRecord, *, is_final: bool) -> None:
        """Deliver one record; the last final record ends the job."""
        if not self.is_cancelled:
            try:
                self._on_done(kernel, record)
            except Exception:
                _log.exception("the callback for a finished kernel failed")
        if is_final:
            with self._lock:
                self._kernels_left -= 1
                if not self._kernels_left:
                    self._finished.set()


@dataclass
class _CompileTask:
    """One compile unit for one target, with all jobs that wait for it."""

    unit: CompileUnit
    target: str
    waiting_jobs: list[tuple[CompileJob, str]] = field(default_factory=list)
    was_abandoned: bool = False

    @property
    def is_wanted(self) -> bool:
        """True if a job that was not cancelled waits for it."""
        return any(not job.is_cancelled for job, _ in self.waiting_jobs)

    def deliver(self, record: TargetRecord, *, is_final: bool) -> None:
        """Deliver a record to every waiting job."""
        for job, kernel in tuple(self.waiting_jobs):
            job.deliver(kernel, record, is_final=is_final)

    def failure_record(self, reason: str) -> TargetRecord:
        """Return the record of a unit whose worker failed."""
        return TargetRecord(
            self.target, error=f"Triton could not compile {self.unit.name} for {self.target}: {reason}."
        )


class _BackgroundCompiler:
    """All units being compiled in this process, and a cache of finished records.

    The lock is never held while a record is delivered.
    """

    def __init__(self) -> None:
        self._pool = WorkerPool(PROCESSES, {"TRITON_INTERPRET": "0"}, idle_seconds=COMPILER_IDLE_SECONDS)
        self._lock = make_lock()
        self._finished: OrderedDict[tuple[CompileUnit, str], TargetRecord] = OrderedDict()
        self._running: dict[tuple[CompileUnit, str], _CompileTask] = {}
        self._compiling_count = 0
        self._without_sass: list[tuple[_CompileTask, Any]] = []

    def submit(self, units: Sequence[tuple[str, CompileUnit]], target: str, job: CompileJob) -> None:
        """Start compiling every (kernel id, unit) of a job; deliver cached records."""
        cached_records: list[tuple[str, TargetRecord]] = []
        for kernel, unit in units:
            with self._lock:
                record = self._finished.get((unit, target))
                if record is not None:
                    self._finished.move_to_end((unit, target))
                    cached_records.append((kernel, record))
                    continue
                work = self._running.get((unit, target))
                if work is not None:
                    work.waiting_jobs.append((job, kernel))
                    continue
                work = self._running[unit, target] = _CompileTask(unit, target, [(job, kernel)])
                self._compiling_count += 1
            self._start(work)
        if cached_records:
            # Not in the caller's thread, which may hold a lock that ``on_done`` needs.
            threading.Thread(
                target=_deliver_all, args=(job, cached_records), name="engine-worker-known", daemon=True
            ).start()

    def _start(self, work: _CompileTask) -> None:
        self._pool.submit(
            COMPILE_TASK,
            (work.unit, work.target),
            lambda value, reason: self._on_compiled(work, value, reason),
            timeout=TIMEOUT,
            is_wanted=lambda: work.is_wanted,
        )

    def _on_compiled(self, work: _CompileTask, compiled: Any, reason: str | None) -> None:
        if reason is not None and work.was_abandoned and work.is_wanted:
            # It was killed while unwanted, and a new job has requested it meanwhile.
            work.was_abandoned = False
            self._start(work)
            return
        record = work.failure_record(reason) if reason is not None else compiled.record
        needs_sass = reason is None and bool(compiled.cubin)
        with self._lock:
            self._compiling_count -= 1
            if needs_sass:
                self._without_sass.append((work, compiled))
        if needs_sass:
            work.deliver(record, is_final=False)
        else:
            self._finish(work, record, is_worth_keeping=reason is None)
        self._disassemble()

    def _disassemble(self) -> None:
        with self._lock:
            if not self._without_sass or (self._compiling_count and len(self._without_sass) < MAX_SASS_BATCH):
                return
            batch, self._without_sass = self._without_sass, []

        def done(records: Any, reason: str | None) -> None:
            if reason is not None:
                message = f"The SASS of this kernel could not be read: {reason}."
                records = [replace(compiled.record, error=message) for _, compiled in batch]
            for (work, _), record in zip(batch, records, strict=True):
                self._finish(work, record, is_worth_keeping=reason is None)

        self._pool.submit(
            ADD_SASS_TASK,
            ([compiled for _, compiled in batch],),
            done,
            rank=1,
            timeout=TIMEOUT,
            is_wanted=lambda: any(work.is_wanted for work, _ in batch),
        )

    def _finish(self, work: _CompileTask, record: TargetRecord, *, is_worth_keeping: bool) -> None:
        with self._lock:
            if self._running.get((work.unit, work.target)) is work:
                del self._running[work.unit, work.target]
            if is_worth_keeping:
                self._finished[work.unit, work.target] = record
                while len(self._finished) > MAX_CACHED_RECORDS:
                    self._finished.popitem(last=False)
        work.deliver(record, is_final=True)

    def cancel_unwanted(self) -> None:
        """Stop units that no job waits for."""
        with self._lock:
            for work in self._running.values():
                work.was_abandoned = work.was_abandoned or not work.is_wanted
        self._pool.stop_unwanted()

    def start_workers(self) -> None:
        """Start the worker processes and load Triton in them."""
        for _ in range(PROCESSES):
            self._pool.submit(WARM_UP_TASK, (), lambda _value, _reason: None)


def _deliver_all(job: CompileJob, records: Sequence[tuple[str, TargetRecord]]) -> None:
    for kernel, record in records:
        job.deliver(kernel, record, is_final=True)


_compiler = _BackgroundCompiler()


def submit_compile_job(kernels: Sequence[GeneratedKernel], target: str, on_done: OnDone) -> CompileJob:
    """Compile kernels for a target in the background.

    ``on_done(kernel id, record)`` is called in another thread, twice per kernel: without SASS, then with it.
    It is called once if the target has no SASS or compilation failed. A failure is a record with ``error`` set.
    """
    units = [(kernel.id, compile_unit_of(kernel)) for kernel in kernels]
    job = CompileJob(on_done, len(units))
    if importlib.util.find_spec("triton") is None:
        threading.Thread(
            target=_deliver_without_triton, args=(job, units, target), name="engine-worker-none", daemon=True
        ).start()
    else:
        _compiler.submit(units, target, job)
    return job


def _deliver_without_triton(job: CompileJob, units: Sequence[tuple[str, CompileUnit]], target: str) -> None:
    """Deliver the records for a missing Triton without a worker: pipes may be unavailable too."""
    module, _, name = COMPILE_TASK.partition(":")
    compile_unit = getattr(importlib.import_module(module), name)
    _deliver_all(job, [(kernel, compile_unit(unit, target).record) for kernel, unit in units])


def start_workers() -> None:
    """Start the workers now, so that the first job does not wait for Triton; return at once."""
    _compiler.start_workers()
