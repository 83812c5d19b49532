"""Kernel edit trials: compile and run the edited text of a kernel in worker processes."""

from __future__ import annotations

import base64
import contextlib
import functools
import mmap
import pathlib
import pickle
import queue
import re
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from engine import session_jobs
from engine.editing.edit_kernels import LANGUAGES, KernelTextEdit, text_digest, text_problem
from engine.editing.edited_kernel_worker import (
    NOTES_BYTES,
    CpuLaunch,
    EditedRun,
    line_in_stack,
    prepare_cpu_run,
    read_notes,
)
from engine.editing.try_edits import EditTrial
from engine.errors import BadArgument
from engine.find_compilation import find_compilation
from engine.forked_run import RunEnd, WaitingRun
from engine.interrupts.deferred_interrupts import allow_interrupts
from engine.interrupts.weak_tables import WeakTable
from engine.ir.kernels.compile_triton import compile_unit_of
from engine.ir.kernels.generated_kernel import GeneratedKernel
from engine.ir.kernels.lowered_program import CPU_TARGET
from engine.records.kernels import KernelRecord, TargetRecord
from engine.records.session import CompilationRecord, Session
from engine.runtime.cpu_launcher import argument_kinds
from engine.runtime.verify.kernels import kernel_trial
from engine.runtime.verify.kernels_in_worker import KernelTrial
from engine.runtime.workers.compile_jobs import WARM_UP_TASK
from engine.runtime.workers.process_pool import FOREGROUND, WorkerFailed, WorkerPool
from engine.session_jobs import with_kernels

SECONDS = 10.0
"""Seconds that a launch of an edited kernel may take."""
IDLE_SECONDS = 120.0
"""Idle seconds after which the workers end.

People read and think longer than a worker of Verify waits.
"""
_WORKER = "engine.editing.edited_kernel_worker"
_COMPILE_TASK = "engine.kernels.compile_kernel:compile_unit_with_sass"


@dataclass
class _Launch:
    """A kernel, its launch and its target.

    For a CPU: the process that waits for the next text, and its notes.
    """

    kernel: GeneratedKernel
    trial: KernelTrial
    target: str
    waiting: WaitingRun | None = None
    notes: mmap.mmap | None = None

    @property
    def cpu_launch(self) -> CpuLaunch:
        return CpuLaunch(argument_kinds(self.kernel), int(self.kernel.grid[1]))

    def prepare(self) -> tuple[WaitingRun, mmap.mmap]:
        """Fork the process that runs the next text of a CPU kernel, unless it waits already.

        It has torch and LLVM from the start. A worker loads them for seconds, and is then faster.
        """
        if self.notes is None or self.waiting is None or not self.waiting.is_ready:
            self.notes = mmap.mmap(-1, NOTES_BYTES)
            work = functools.partial(prepare_cpu_run, self.trial, self.cpu_launch, self.kernel.text, self.notes)
            self.waiting = WaitingRun(work, uses_gpu=False)
        return self.waiting, self.notes


_pool = WorkerPool(1, {"TRITON_INTERPRET": "1", **FOREGROUND}, idle_seconds=IDLE_SECONDS)
"""Not the pool of Verify: an edit may end its process."""
_compiler = WorkerPool(1, {"TRITON_INTERPRET": "0", **FOREGROUND}, idle_seconds=IDLE_SECONDS)
"""Not the pool of compile jobs: an edit does not wait for the kernels of a session."""

_finished: WeakTable[Session, dict[tuple[str, str, str], EditedRun]] = WeakTable()
"""Runs without a problem, by session, then by compilation, kernel and text."""
_prepared: WeakTable[Session, tuple[Any, _Launch]] = WeakTable()
"""The launch of the kernel edited last; the whole graph computes its values."""


def start_workers(text: str = "") -> None:
    """Start the workers that a trial of a text needs; return at once."""
    _pool.submit(f"{_WORKER}:warm_up", (), lambda _value, _reason: None)
    if text.startswith(LANGUAGES["triton"]):
        _compiler.submit(WARM_UP_TASK, (), lambda _value, _reason: None)


def prepare_launch(session: Session, compilation: str, text: str) -> None:
    """Compute the inputs of a kernel to be edited, and start what its trial needs."""
    with contextlib.suppress(ValueError, BadArgument):
        record = _kernel_record(session.compilation(compilation), KernelTextEdit(text))
        if record is not None:
            launch = _launch_of(session, compilation, record)
            if launch.target == CPU_TARGET and not _pool.has_idle_process:
                launch.prepare()


def _call(task: str, arguments: tuple[Any, ...], seconds: float) -> EditedRun:
    """Run a task of the worker; if it fails, start another worker.

    Raises:
        WorkerFailed: the process ended, or the time is over.
    """
    _pool.call(f"{_WORKER}:warm_up", ())  # excludes loading torch and Triton from the limit
    try:
        run: EditedRun = _pool.call(f"{_WORKER}:{task}", arguments, timeout=seconds)
    except WorkerFailed:
        start_workers()
        raise
    return run


def try_kernel_edits(session: Session, compilation: str, texts: Mapping[str, str]) -> EditTrial:
    """Compile edited kernels and run each on ATen's values of its inputs, in worker processes.

    Args:
        session: recorded in this process.
        compilation: id of the compilation ("0/0").
        texts: edited texts of ``graph_text`` by the name of their edit.

    Raises:
        BadArgument: a text does not begin with the comment of ``graph_text``, or there is no such compilation.
    """
    edits = {name: KernelTextEdit(text) for name, text in texts.items()}
    records = {name: _kernel_record(find_compilation(session, compilation), edit) for name, edit in edits.items()}
    for name, record in records.items():
        if record is not None and (problem := text_problem(record, edits[name].text)):
            return EditTrial(problem=_sentence(*problem), edit=name, line=problem[1] + 1)
    before, after = (Session.from_data(session.to_data()) for _ in range(2))
    trial = EditTrial(before, after, compilation)
    not_run: dict[str, str] = {}
    for name, edit in edits.items():
        record = records[name]
        if record is None:
            return replace(trial, unused=(edit.unused,))
        try:
            run = _run(session, compilation, record, edit)
        except ValueError as error:
            not_run[name] = f"Kernel {record.id} cannot be run alone: {error}."
            continue
        edited_record = replace(record, text=edit.text, targets=tuple(filter(None, (run.target,))), verify=None)
        after.update_compilation(compilation, functools.partial(_with_kernel, kernel=edited_record))
        if reason := _problem_of(run):
            return replace(trial, problem=_sentence(reason, run.line), edit=name, line=run.line + 1)
        if run.comparison is not None and run.comparison.outcome == "different":
            trial = replace(trial, difference=run.comparison.note)
        trial = replace(trial, seconds=run.seconds if len(texts) == 1 else (), reference=run.reference)
    if len(not_run) == len(texts):
        name, reason = next(reversed(not_run.items()))
        return replace(trial, problem=reason, edit=name, line=1)
    return replace(trial, not_run=tuple(not_run.values()))


def _run(session: Session, compilation: str, record: KernelRecord, edit: KernelTextEdit) -> EditedRun:
    """Run one edited kernel.

    Raises:
        ValueError: why it cannot be run.
    """
    finished, key = _finished.setdefault(session, {}), (compilation, record.id, edit.text)
    if key not in finished:
        run = _run_uncached(_launch_of(session, compilation, record), edit)
        if _problem_of(run):
            return run
        finished[key] = run
    return finished[key]


def _run_uncached(launch: _Launch, edit: KernelTextEdit) -> EditedRun:
    trial = replace(launch.trial, text=edit.text)
    if launch.target == CPU_TARGET and not _pool.has_idle_process:
        forked = _run_in_fork(launch, edit.text)
        if forked is not None:
            return forked
    with tempfile.TemporaryDirectory(prefix="engine-edit-") as folder:
        notes = str(pathlib.Path(folder) / "notes")
        pathlib.Path(notes).write_bytes(bytes(NOTES_BYTES))
        if launch.target == CPU_TARGET:
            return _run_in_worker(launch, trial, notes)
        return _run_triton(launch.kernel, trial, notes, launch.target)


def _problem_of(run: EditedRun) -> str:
    """Return why a run has no result."""
    if not run.problem and run.comparison is not None and run.comparison.outcome == "not verifiable":
        return run.comparison.note.removeprefix("not verifiable: ")
    return run.problem


def _with_kernel(compilation: CompilationRecord, kernel: KernelRecord) -> CompilationRecord:
    return with_kernels(compilation, lambda k: kernel if (k.id, k.language) == (kernel.id, kernel.language) else k)


def _sentence(problem: str, line: int) -> str:
    text = f"{problem.rstrip('.')}." if problem else ""
    return f"Line {line + 1}: {text}" if line and text else f"{text[:1].upper()}{text[1:]}"


def _kernel_record(compilation: CompilationRecord, edit: KernelTextEdit) -> KernelRecord | None:
    kernels = (*compilation.cpu_kernels, *compilation.kernels)
    return next((k for k in kernels if k.id == edit.kernel and text_digest(k.text) == edit.digest), None)


def _launch_of(session: Session, compilation: str, record: KernelRecord) -> _Launch:
    """Return a kernel, its launch and its target.

    Raises:
        ValueError: why it cannot be run.
    """
    key = compilation, record.id
    if session in _prepared and _prepared[session][0] == key:
        return _prepared[session][1]
    for lowered in session_jobs.lowered_graphs_of(session).get(compilation, ()):
        if any(k.id == record.id and k.text == record.text for k in lowered.program.kernels):
            trial = kernel_trial(lowered.program, lowered.graph, lowered.inputs, record.id)
            _prepared[session] = key, _Launch(*trial, lowered.program.target)
            return _prepared[session][1]
    raise ValueError("its inputs are gone, as the session was loaded from a file")


def _run_in_fork(launch: _Launch, text: str) -> EditedRun | None:
    """Run a CPU kernel's text in the process that waits; None if none can be forked."""
    waiting, notes = launch.prepare()
    result = waiting.ask(text, SECONDS)
    if result.ending is RunEnd.RETURNED:
        run: EditedRun = pickle.loads(base64.b64decode(result.value))  # noqa: S301 - a fork of this process wrote it
        return run
    if result.ending is RunEnd.NOT_FORKED:
        return None
    return _run_without_result(result.ending is RunEnd.TIMED_OUT, notes[:], text, result.problem)


def _run_in_worker(launch: _Launch, trial: KernelTrial, notes: str) -> EditedRun:
    try:
        return _call("run_cpu_kernel", (trial, launch.cpu_launch, launch.kernel.text, notes), SECONDS)
    except WorkerFailed as error:
        data = pathlib.Path(notes).read_bytes()
        return _run_without_result("longer than" in str(error), data, trial.text, str(error))


def _run_without_result(is_late: bool, notes: bytes, text: str, reason: str) -> EditedRun:
    done, line = read_notes(notes, text)
    late = f"the kernel does not end within {SECONDS:.0f} s" if is_late else ""
    return EditedRun(problem=late or done or f"the kernel cannot be run: {reason}", line=line)


def _run_triton(source: GeneratedKernel, trial: KernelTrial, notes: str, target: str) -> EditedRun:
    unit = compile_unit_of(replace(source, text=trial.text, fallback_configs=()))
    compiled: queue.SimpleQueue[tuple[TargetRecord | None, str | None]] = queue.SimpleQueue()
    _compiler.submit(_COMPILE_TASK, (unit, target), lambda record, reason: compiled.put((record, reason)))
    try:
        run = _call("run_triton_kernel", (trial, source.text, notes, SECONDS), 2 * SECONDS)
    except WorkerFailed as error:
        line = line_in_stack(notes, f"{trial.name}.py")
        text = f"the kernel does not end within {SECONDS:.0f} s" if line else f"the kernel cannot be run: {error}"
        run = EditedRun(problem=text, line=line)
    with allow_interrupts():
        compiled_target, reason = compiled.get()
    compiled_target = compiled_target or TargetRecord(
        target, error=f"Triton could not compile {source.name} for {target}: {reason}."
    )
    if compiled_target.error and not run.problem:
        at = re.search(r" at line (\d+): (.*)", compiled_target.error)
        run = EditedRun(problem=at[2] if at else compiled_target.error, line=int(at[1]) if at else 0)
    return replace(run, target=compiled_target, seconds=())
