"""Compile kernels for targets in the background: results come kernel by kernel, a job can be cancelled, equal kernels compile once.

Each kernel is told twice: with everything but SASS as soon as it is compiled, then with SASS, which is disassembled for many kernels
at once when nothing is left to compile.
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

from engine.ir.binary import Unit, unit_of
from engine.ir.kernel import KernelSource
from engine.records.kernels import TargetRecord
from engine.runtime.pool import Pool

OnDone = Callable[[str, TargetRecord], None]

# By name: stages do not import each other, and it is the child that does the work.
COMPILE = "engine.kernels.targets:compile_unit"
ADD_SASS = "engine.kernels.targets:with_sass"
PREPARE = "engine.kernels.targets:prepare"

PROCESSES = max(1, min(4, os.cpu_count() or 2))
TIMEOUT = 120.0
"""Seconds that one kernel may take."""
REMEMBERED = 256
"""Records of finished kernels kept, by content."""
BATCH = 32
"""Kernels disassembled at once, at most."""

_log = logging.getLogger("engine")


class Job:
    """Kernels being compiled for one target."""

    def __init__(self, on_done: OnDone, count: int) -> None:
        self._on_done = on_done
        self._left = count
        self._lock = threading.Lock()
        self._finished = threading.Event()
        self.is_cancelled = False
        if not count:
            self._finished.set()

    @property
    def done(self) -> bool:
        """Whether every kernel is finished, or the job was cancelled."""
        return self._finished.is_set()

    def wait(self, timeout: float | None = None) -> bool:
        """Wait for the end; False when ``timeout`` seconds passed first."""
        return self._finished.wait(timeout)

    def cancel(self) -> None:
        """Drop what has not begun and stop what has. ``on_done`` is not called again, save for a call under way."""
        self.is_cancelled = True
        self._finished.set()
        _compiler.let_go()

    def tell(self, kernel: str, record: TargetRecord, *, is_final: bool) -> None:
        """Hand one record on; the last final one ends the job."""
        if not self.is_cancelled:
            try:
                self._on_done(kernel, record)
            except Exception:
                _log.exception("what is called for each finished kernel failed")
        if is_final:
            with self._lock:
                self._left -= 1
                if not self._left:
                    self._finished.set()


@dataclass
class _Work:
    """One unit for one target, with everyone who waits for it."""

    unit: Unit
    target: str
    waiting: list[tuple[Job, str]] = field(default_factory=list)
    was_let_go: bool = False

    @property
    def is_wanted(self) -> bool:
        """Whether a job that was not cancelled still waits for it."""
        return any(not job.is_cancelled for job, _ in self.waiting)

    def tell(self, record: TargetRecord, *, is_final: bool) -> None:
        """Tell every job that waits."""
        for job, kernel in tuple(self.waiting):
            job.tell(kernel, record, is_final=is_final)

    def failed(self, reason: str) -> TargetRecord:
        """The record of a unit whose worker did not return."""
        return TargetRecord(
            self.target, error=f"Triton could not compile {self.unit.name} for {self.target}: {reason}."
        )


class _Compiler:
    """What is being compiled in this process, and what is known already. The lock is never held while a job is told."""

    def __init__(self) -> None:
        self._pool = Pool(PROCESSES, {"TRITON_INTERPRET": "0"})
        self._lock = threading.Lock()
        self._known: OrderedDict[tuple[Unit, str], TargetRecord] = OrderedDict()
        self._running: dict[tuple[Unit, str], _Work] = {}
        self._compiling = 0
        self._without_sass: list[tuple[_Work, Any]] = []

    def submit(self, units: Sequence[tuple[str, Unit]], target: str, job: Job) -> None:
        """Start on every (kernel id, unit) of a job."""
        known: list[tuple[str, TargetRecord]] = []
        for kernel, unit in units:
            with self._lock:
                record = self._known.get((unit, target))
                if record is not None:
                    self._known.move_to_end((unit, target))
                    known.append((kernel, record))
                    continue
                work = self._running.get((unit, target))
                if work is not None:
                    work.waiting.append((job, kernel))
                    continue
                work = self._running[unit, target] = _Work(unit, target, [(job, kernel)])
                self._compiling += 1
            self._start(work)
        if known:
            # Not in the caller's thread: it may hold what on_done needs.
            threading.Thread(target=_tell_all, args=(job, known), name="engine-worker-known", daemon=True).start()

    def _start(self, work: _Work) -> None:
        self._pool.put(
            COMPILE,
            (work.unit, work.target),
            lambda value, reason: self._compiled(work, value, reason),
            timeout=TIMEOUT,
            is_wanted=lambda: work.is_wanted,
        )

    def _compiled(self, work: _Work, compiled: Any, reason: str | None) -> None:
        if reason is not None and work.was_let_go and work.is_wanted:
            # Stopped when nobody wanted it, and somebody came back for it meanwhile.
            work.was_let_go = False
            self._start(work)
            return
        record = work.failed(reason) if reason is not None else compiled.record
        needs_sass = reason is None and bool(compiled.cubin)
        with self._lock:
            self._compiling -= 1
            if needs_sass:
                self._without_sass.append((work, compiled))
        if needs_sass:
            work.tell(record, is_final=False)
        else:
            self._finish(work, record, is_worth_keeping=reason is None)
        self._disassemble()

    def _disassemble(self) -> None:
        with self._lock:
            if not self._without_sass or (self._compiling and len(self._without_sass) < BATCH):
                return
            batch, self._without_sass = self._without_sass, []

        def done(records: Any, reason: str | None) -> None:
            if reason is not None:
                said = f"The SASS of this kernel could not be read: {reason}."
                records = [replace(compiled.record, error=said) for _, compiled in batch]
            for (work, _), record in zip(batch, records, strict=True):
                self._finish(work, record, is_worth_keeping=reason is None)

        self._pool.put(
            ADD_SASS,
            ([compiled for _, compiled in batch],),
            done,
            rank=1,
            timeout=TIMEOUT,
            is_wanted=lambda: any(work.is_wanted for work, _ in batch),
        )

    def _finish(self, work: _Work, record: TargetRecord, *, is_worth_keeping: bool) -> None:
        with self._lock:
            if self._running.get((work.unit, work.target)) is work:
                del self._running[work.unit, work.target]
            if is_worth_keeping:
                self._known[work.unit, work.target] = record
                while len(self._known) > REMEMBERED:
                    self._known.popitem(last=False)
        work.tell(record, is_final=True)

    def let_go(self) -> None:
        """Stop work that nobody waits for."""
        with self._lock:
            for work in self._running.values():
                work.was_let_go = work.was_let_go or not work.is_wanted
        self._pool.stop_unwanted()

    def warm(self) -> None:
        """Start the processes and load Triton in them."""
        for _ in range(PROCESSES):
            self._pool.put(PREPARE, (), lambda _value, _reason: None)


def _tell_all(job: Job, records: Sequence[tuple[str, TargetRecord]]) -> None:
    for kernel, record in records:
        job.tell(kernel, record, is_final=True)


_compiler = _Compiler()


def submit(kernels: Sequence[KernelSource], target: str, on_done: OnDone) -> Job:
    """Compile kernels for a target in the background.

    ``on_done(kernel id, record)`` is called in another thread: once with everything but SASS, and once more when that is there (where
    the target has none, or compiling failed, once). Failures are records with ``error`` set.
    """
    units = [(kernel.id, unit_of(kernel)) for kernel in kernels]
    job = Job(on_done, len(units))
    if importlib.util.find_spec("triton") is None:
        threading.Thread(
            target=_tell_why_not, args=(job, units, target), name="engine-worker-none", daemon=True
        ).start()
    else:
        _compiler.submit(units, target, job)
    return job


def _tell_why_not(job: Job, units: Sequence[tuple[str, Unit]], target: str) -> None:
    """Without Triton no worker is needed to say so (nor do pipes to one work everywhere)."""
    module, _, name = COMPILE.partition(":")
    compile_unit = getattr(importlib.import_module(module), name)
    _tell_all(job, [(kernel, compile_unit(unit, target).record) for kernel, unit in units])


def warm() -> None:
    """Start the worker processes now, so that the first job need not wait for Triton to load. Returns at once."""
    _compiler.warm()
