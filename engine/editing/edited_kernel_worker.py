"""Run the edited text of a kernel, worker side: check each access, find the line at fault.

The arguments of a CPU kernel end at guard pages. The kernel writes its line to a file before each access and jump, so
that the line is known after a crash or timeout. In Triton's interpreter each address is checked before the access.
"""

from __future__ import annotations

import base64
import faulthandler
import functools
import json
import mmap
import os
import pathlib
import pickle
import re
import signal
import time
import traceback
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from types import FrameType
from typing import Any

import torch

from engine.errors import error_line
from engine.ir.kernels.compile_llvm import CannotCompile, compile_object, load_function, object_of_module
from engine.ir.kernels.llvm_machine import initialize, llvm
from engine.kernels.cpu.line_tables import is_instruction
from engine.kernels.cpu.listings import host_machine, optimized_module, record_of_module
from engine.records.kernels import TargetRecord
from engine.runtime.kernel_launchers import interpreter_kernel
from engine.runtime.time_cpu_kernels import seconds_of
from engine.runtime.triton_interpreter.checked_accesses import OutOfArguments, checked_accesses, describe_access
from engine.runtime.verify import kernels_in_worker
from engine.runtime.verify.guard_pages import GuardedBuffer
from engine.runtime.verify.kernels_in_worker import (
    KernelComparison,
    KernelTrial,
    RedzonedBuffer,
    buffer_arguments,
    compare_results,
    run_and_compare,
)

NOTES_BYTES = 1 << 16
TABLE = 64
"""Position of the arguments, as JSON, in the file of notes; line and address come first."""


ATEN = "ATen"
UNEDITED = "the kernel before the edit"


@dataclass(frozen=True)
class EditedRun:
    """Result of running an edited kernel.

    ``problem`` says why there is none, at ``line`` of the text (0: unknown). ``seconds``: of a launch before and with
    the edit. ``reference``: what the values were compared with.
    """

    comparison: KernelComparison | None = None
    problem: str = ""
    line: int = 0
    seconds: tuple[float, ...] = ()
    target: TargetRecord | None = None
    reference: str = ATEN


@dataclass(frozen=True)
class CpuLaunch:
    """Launch of a CPU kernel: the kind of each argument, and the chunk of a thread."""

    kinds: tuple[str, ...]
    chunk: int


def warm_up() -> None:
    """Load LLVM and Triton, so that the first kernel does not wait for them."""
    if llvm is not None:
        initialize()
    kernels_in_worker.warm_up()


def _with_unedited_results(trial: KernelTrial, run_unedited: Callable[[], KernelComparison]) -> tuple[KernelTrial, str]:
    """Expect the unedited kernel's values where ATen has none; return the reference, too."""
    outputs = [a for a in buffer_arguments(trial.arguments) if a.written]
    unknown = [a for a in outputs if a.expected is None]
    if not unknown:
        return trial, ATEN
    written = run_unedited().written
    with_results = {id(a): replace(a, expected=written[a.buffer]) for a in unknown}
    arguments = tuple(with_results.get(id(a), a) for a in trial.arguments)
    return replace(trial, arguments=arguments), UNEDITED if len(unknown) == len(outputs) else ATEN


def _against(comparison: KernelComparison, reference: str) -> KernelComparison:
    """Return a comparison whose note names its reference."""
    if reference == ATEN:
        return comparison
    return replace(comparison, note=comparison.note.replace(" in ATen", " before the edit"))


# ---- CPU ----------------------------------------------------------------------------------------------------------


def run_cpu_kernel(trial: KernelTrial, launch: CpuLaunch, original: str, notes: str) -> EditedRun:
    """Run an edited CPU kernel in a worker; ``notes`` is the path of the file of notes."""
    torch.set_num_threads(1)
    with pathlib.Path(notes).open("r+b") as file:
        return _run_cpu_kernel(trial, launch, original, mmap.mmap(file.fileno(), NOTES_BYTES))


def prepare_cpu_run(trial: KernelTrial, launch: CpuLaunch, original: str, notes: mmap.mmap) -> Callable[[str], str]:
    """Compile the original in a forked process; return the function that runs an edited text.

    Its result is a pickled ``EditedRun`` in base64. The processes share the memory of the notes.
    """
    faulthandler.disable()  # a notebook would show the stack of a crash that the notes explain
    _object(trial.name, original)

    def run(text: str) -> str:
        edited = _run_cpu_kernel(replace(trial, text=text), launch, original, notes)
        return base64.b64encode(pickle.dumps(edited)).decode()

    return run


def _run_cpu_kernel(trial: KernelTrial, launch: CpuLaunch, original: str, memory: mmap.mmap) -> EditedRun:
    """Run an edited CPU kernel with guarded arguments; time it in turns with the original."""
    try:
        address = torch.frombuffer(memory, dtype=torch.uint8).data_ptr()
        run = _load(trial.name, _object(trial.name, with_line_stores(trial.text, address)), launch)
        code, target = _compile_to_run(trial.name, trial.text)
        runs = [_load(trial.name, c, launch) for c in (_object(trial.name, original), code)]
        trial, reference = _with_unedited_results(
            trial, lambda: compare_results(trial, lambda *v: _launch(runs[0], launch.kinds, v))
        )
        statuses: list[int] = []
        comparison = compare_results(
            trial,
            lambda *v: statuses.append(_launch(run, launch.kinds, v)),
            GuardedBuffer,
            functools.partial(_write_table, memory),
        )
        if any(statuses):
            return EditedRun(problem="A check of the kernel's indices fails.")
    except CannotCompile as error:
        return EditedRun(problem=f"{error}.")
    seconds = _times(trial, launch.kinds, runs)
    return EditedRun(_against(comparison, reference), seconds=seconds, target=target, reference=reference)


def _compile_to_run(name: str, text: str) -> tuple[bytes, TargetRecord]:
    """Optimize a kernel's text once for this CPU; return its object file and its listings.

    Raises:
        CannotCompile: LLVM rejects the kernel, or it calls a function that is not in this process.
    """
    started, machine = time.perf_counter(), host_machine()
    try:
        module, generator = optimized_module(text, machine)
        code, optimized, assembly = object_of_module(name, module), str(module), generator.emit_assembly(module)
    except RuntimeError as error:
        raise CannotCompile(f"LLVM rejects {name}: {error_line(error)}") from error
    return code, record_of_module(text, optimized, assembly, machine, time.perf_counter() - started)


def _load(name: str, code: bytes, launch: CpuLaunch) -> Callable[..., int]:
    return load_function(name, code, launch.kinds, chunk=launch.chunk)


_object = functools.lru_cache(4)(compile_object)
"""Object file of a text, cached: edits of a kernel are timed against one original."""


def _launch(run: Callable[..., int], kinds: tuple[str, ...], values: tuple[Any, ...]) -> int:
    return run(*(v.data_ptr() if kind == "pointer" else v for kind, v in zip(kinds, values, strict=True)))


def _times(trial: KernelTrial, kinds: tuple[str, ...], runs: list[Callable[..., int]]) -> tuple[float, ...]:
    """Return the seconds of a launch of each kernel, in turns, on plain copies."""
    buffers = {a.buffer: RedzonedBuffer(a).tensor for a in buffer_arguments(trial.arguments)}
    pairs: list[tuple[str, Any]] = list(zip(kinds, trial.arguments, strict=True))
    values = tuple(buffers[a.buffer] if kind == "pointer" else a for kind, a in pairs)
    rounds = [[seconds_of(functools.partial(_launch, run, kinds, values)) for run in runs] for _ in range(3)]
    return tuple(map(min, zip(*rounds, strict=True)))


def _write_table(memory: mmap.mmap, buffers: Mapping[str, RedzonedBuffer]) -> None:
    table = json.dumps({n: (b.addresses.start, b.addresses.stop) for n, b in buffers.items()}).encode()
    memory[TABLE : TABLE + len(table)] = table


_ACCESS = re.compile(r"\s*(%\S+ = )?(tail )?(load|store|call|br|atomicrmw|cmpxchg)\b")
_POINTER = re.compile(r"\bptr (?:align \d+ )?(%[\w.$]+)")


def with_line_stores(text: str, address: int) -> str:
    """Return LLVM IR that stores its line before each access and jump.

    The line is stored at ``address``, and after it the address of an access.
    """
    return "\n".join(_instrumented_lines(text, address)) + "\n"


def _instrumented_lines(text: str, address: int) -> Iterator[str]:
    is_inside = False
    for number, line in enumerate(text.split("\n"), 1):
        if is_inside and is_instruction(line) and (access := _ACCESS.match(line)):
            yield f"  store volatile i64 {number}, ptr inttoptr (i64 {address} to ptr)"
            pointer = _POINTER.findall(line)
            if pointer and access[3] != "br":
                yield f"  store volatile ptr {pointer[-1]}, ptr inttoptr (i64 {address + 8} to ptr)"
        is_inside = line.startswith("define ") or (is_inside and not line.startswith("}"))
        yield line


def read_notes(data: bytes, text: str) -> tuple[str, int]:
    """Return what a CPU kernel did when its process ended, and the line, from its notes."""
    line, address = (int.from_bytes(data[i : i + 8], "little") for i in (0, 8))
    table = data[TABLE:].partition(b"\0")[0]
    lines = text.split("\n")
    if not table or not 0 < line <= len(lines):
        return "", 0
    buffers = {n: range(*ends) for n, ends in json.loads(table).items()}
    verb = "writes" if re.search(r"\b(store|atomicrmw|cmpxchg)\b", lines[line - 1]) else "reads"
    inside = next((n for n, r in buffers.items() if address in r), "")
    if inside and verb == "writes":
        return f"it writes to {inside}, which it should only read, or past its end", line
    return describe_access(address, buffers, verb), line


# ---- Triton -------------------------------------------------------------------------------------------------------


def run_triton_kernel(trial: KernelTrial, original: str, notes: str, seconds: float) -> EditedRun:
    """Interpret an edited Triton kernel with checked accesses.

    After ``seconds`` the process ends, and the file of notes holds its stack.
    """
    written = frozenset(a.buffer for a in buffer_arguments(trial.arguments) if a.written)
    addresses: dict[str, range] = {}

    def interpret(*values: Any) -> None:
        with checked_accesses(addresses, written):
            interpreter_kernel(trial.name, trial.text)[trial.grid](*values)

    def learn(buffers: Mapping[str, RedzonedBuffer]) -> None:
        addresses.update({n: b.addresses for n, b in buffers.items()})

    def leave(_: int, frame: FrameType | None) -> None:
        pathlib.Path(notes).write_text("".join(traceback.format_stack(frame)))
        os._exit(1)

    signal.signal(signal.SIGALRM, leave)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        trial, reference = _with_unedited_results(trial, lambda: run_and_compare(replace(trial, text=original)))
        comparison = compare_results(trial, interpret, on_buffers=learn)
    except Exception as error:
        return EditedRun(problem=_innermost_message(error), line=_line_in(error, f"{trial.name}.py"))
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
    return EditedRun(_against(comparison, reference), reference=reference)


def _innermost_message(error: BaseException) -> str:
    while error.__cause__ is not None:
        error = error.__cause__
    text = (str(error).strip().splitlines() or [""])[0]
    return text if error.__class__ is OutOfArguments else f"{type(error).__name__}: {text}".rstrip(": ")


def _line_in(error: BaseException, file: str) -> int:
    """Return the line of a file that an error or its innermost cause comes from, or 0."""
    line = 0
    cause: BaseException | None = error
    while cause is not None:
        lines = [f.lineno for f in traceback.extract_tb(cause.__traceback__) if f.filename == file]
        line = lines[-1] if lines and lines[-1] else line
        cause = cause.__cause__
    return line


def line_in_stack(notes: str, file: str) -> int:
    """Return the line of a file in the stack that a time limit left, or 0."""
    lines = re.findall(rf'File "{re.escape(file)}", line (\d+)', pathlib.Path(notes).read_text(errors="replace"))
    return int(lines[-1]) if lines else 0
