"""Compile a kernel for a named target to PTX, SASS or AMDGCN."""

from __future__ import annotations

import contextlib
import functools
import importlib.util
import io
import itertools
import platform
import re
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from engine.ir.kernels.compile_triton import (
    COMPILE_LOCK,
    CompileUnit,
    compile_unit_of,
    compile_with_fallback_configs,
    run_triton_compiler,
)
from engine.kernels.cpu.listings import CPU, compile_for_cpu
from engine.kernels.gpu_targets import Target, parse_target
from engine.kernels.link_listings import link_listing
from engine.kernels.resources import check_fit
from engine.kernels.sass import disassemble
from engine.records.kernels import KernelResources, TargetRecord

if TYPE_CHECKING:  # worker processes compile without torch, whose import takes longer than all their work
    from engine.ir.kernels.generated_kernel import GeneratedKernel


LISTING_STAGES = ("ttir", "ttgir", "llir", "ptx", "amdgcn")
"""Listings in the order of compilation; SASS is disassembled from the binary afterward."""


def compile_kernel(source: GeneratedKernel, target: str) -> TargetRecord:
    """Compile one kernel for one target, with all listings linked to its source.

    A failure is recorded in the record's ``error``.

    Raises:
        UnknownTarget: no target has this name.
    """
    return compile_unit_with_sass(compile_unit_of(source), target)


def compile_unit_with_sass(unit: CompileUnit, target: str) -> TargetRecord:
    """Compile one unit for one target, with all listings.

    Raises:
        UnknownTarget: no target has this name.
    """
    return add_sass([compile_unit(unit, target)])[0]


@dataclass(frozen=True)
class CompileResult:
    """A compiled kernel: all listings but SASS, and the cubin from which SASS is read.

    ``cubin`` is empty if the binary is of another kind.
    """

    record: TargetRecord
    cubin: bytes = b""


def compile_unit(unit: CompileUnit, target: str) -> CompileResult:
    """Compile one unit for one target. A failure is recorded in the record's ``error``.

    Raises:
        UnknownTarget: no target has this name.
    """
    if target == CPU:
        return CompileResult(compile_for_cpu(unit.name, unit.text))
    parsed_target = parse_target(target)
    if missing := why_triton_is_missing():
        return CompileResult(TargetRecord(target, error=missing))
    started = time.perf_counter()
    try:
        # Triton prints the whole PTX if ptxas rejects it. Standard output belongs to the process: one thread
        # at a time redirects it.
        with COMPILE_LOCK, contextlib.redirect_stdout(io.StringIO()):
            fitted = compile_with_fallback_configs(
                unit, functools.partial(_build_and_check_fit, parsed_target), lambda built: built[1].spills
            )
        seconds = time.perf_counter() - started
        kernel, used = fitted.compiled
        built = unit.with_config(fitted.config)
        listings = tuple(
            link_listing(s, clean_listing(kernel.asm[s]), built) for s in LISTING_STAGES if s in kernel.asm
        )
        record = TargetRecord(target, listings, used, seconds, smaller_blocks_note=fitted.reason)
    except Exception as error:
        return CompileResult(
            TargetRecord(
                target, seconds=time.perf_counter() - started, error=_compile_error_message(unit, target, error)
            )
        )
    return CompileResult(record, kernel.asm.get("cubin", b""))


def _build_and_check_fit(target: Target, unit: CompileUnit) -> tuple[Any, KernelResources]:
    kernel = _build_with_listings(unit, target)
    return kernel, check_fit(target.name, kernel)


def _build_with_listings(unit: CompileUnit, target: Target) -> Any:
    """Build a kernel with all its listings; ignore a disk cache that holds binaries only."""
    from triton import knobs

    where = (target.backend, target.architecture, target.warp_size)
    kernel = run_triton_compiler(unit, where)
    if "ttgir" in kernel.asm and ("ptx" in kernel.asm or "amdgcn" in kernel.asm):
        return kernel
    with knobs.compilation.scope():
        knobs.compilation.always_compile = True
        knobs.compilation.store_binary_only = False
        return run_triton_compiler(unit, where)


def add_sass(compiled: Sequence[CompileResult]) -> tuple[TargetRecord, ...]:
    """Add SASS to the records that have a cubin, by one disassembler run per target."""
    records = {i: c.record for i, c in enumerate(compiled)}
    order = sorted((i for i, c in enumerate(compiled) if c.cubin), key=lambda i: compiled[i].record.target)
    for target, group in itertools.groupby(order, key=lambda i: compiled[i].record.target):
        records.update(_disassemble_target(target, {i: compiled[i] for i in group}))
    return tuple(records[i] for i in range(len(compiled)))


def _disassemble_target(target: str, group: dict[int, CompileResult]) -> dict[int, TargetRecord]:
    ptx = [next(x for x in c.record.listings if x.stage == "ptx") for c in group.values()]
    try:
        listings = disassemble([c.cubin for c in group.values()], int(parse_target(target).architecture), ptx)
    except Exception as error:
        reason = f"The SASS of this kernel could not be read: {error}"
        return {i: replace(c.record, error=reason) for i, c in group.items()}
    return {
        i: replace(c.record, listings=(*c.record.listings, sass))
        for (i, c), sass in zip(group.items(), listings, strict=True)
    }


def preload_triton() -> None:
    """Import Triton and compute its cache key, so that the next kernel compiles faster."""
    if not why_triton_is_missing():
        importlib.import_module("triton.compiler")
        importlib.import_module("triton.runtime.cache").triton_key()


def why_triton_is_missing() -> str:
    """Return one sentence why Triton is missing and how to get it; empty if it is installed."""
    if importlib.util.find_spec("triton") is not None:
        return ""
    if platform.system() == "Linux":
        return "PTX and SASS need Triton, which is not installed: pip install triton."
    return "PTX and SASS need Linux: Triton has no package for this system (on Windows, use WSL2)."


_PATH = re.compile(r'"(/[^"\n]*)"')


_DEBUG = re.compile(r'\s*\.section\s+"?\.debug')


_SECTION = re.compile(r"\s*\.(section|text|amdgpu_metadata)\b")


def clean_listing(text: str) -> str:
    """Remove folders of this machine and debug sections from a listing.

    Lines before the first debug section have the same numbers as before.
    """
    lines: list[str] = []
    in_debug = False
    for line in text.splitlines():
        if _SECTION.match(line):
            in_debug = bool(_DEBUG.match(line))
        if not in_debug:
            lines.append(_PATH.sub(lambda m: f'"{_strip_folder(m[1])}"', line) if '"/' in line else line)
    return "\n".join(lines) + "\n"


def _strip_folder(path: str) -> str:
    """Shorten a path to Triton's package or its base name: ``triton/language/standard.py``."""
    _, package, inside = f"{path}/".rpartition("/triton/")
    return f"triton/{inside}".rstrip("/") if package else path.rstrip("/").rpartition("/")[2]


def _compile_error_message(unit: CompileUnit, target: str, error: Exception) -> str:
    """Return one sentence why Triton could not compile a kernel, with the source line."""
    cause: BaseException = error
    while cause.__cause__ is not None:
        cause = cause.__cause__
    if os_message := getattr(cause, "strerror", None):  # an OSError; a SyntaxError has a file name too
        file = getattr(cause, "filename", None) or "a file"
        return (
            f"Triton could not compile {unit.name} for {target}: {file} cannot be used ({os_message}). "
            "Free some disk space, or set TRITON_CACHE_DIR to a folder that can be written."
        )
    line = _line_of_error(unit, error)
    message = getattr(error, "error_message", None) or str(cause) or type(cause).__name__
    message_lines = [part.strip() for part in str(message).strip().splitlines() if part.strip()]
    at = f" at line {line}" if line else ""
    return f"Triton could not compile {unit.name} for {target}{at}: {_first_error_line(message_lines)}"


def _line_of_error(unit: CompileUnit, error: Exception) -> int | None:
    """Return the line of a kernel's text that Triton rejects.

    Triton counts from the function's first line.
    """
    line = getattr(getattr(error, "node", None), "lineno", None)
    start = unit.text.find(getattr(error, "src", None) or unit.text)
    return None if line is None else line + unit.text.count("\n", 0, max(0, start))


def _first_error_line(lines: list[str]) -> str:
    """Return the line that names the cause; ``ptxas`` says more than Triton's report of it."""
    of_ptxas = [line for line in lines if line.startswith("ptxas ")]
    errors = [line for line in lines if "error" in line.lower()]
    return next(iter([*of_ptxas, *errors, *lines]), "the compiler gave no reason")
