"""Listings of a CPU kernel: optimized LLVM IR and assembly, linked to its text."""

from __future__ import annotations

import functools
import re
import time
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from engine.errors import error_line
from engine.ir.kernels.host_vectors import VectorUnit
from engine.ir.kernels.llvm_machine import (
    function_attributes,
    host_unit,
    initialize,
    llvm,
    optimize,
    parse_module,
    why_llvm_is_missing,
)
from engine.kernels.cpu.instruction_lines import lines_by_use, values_by_use
from engine.kernels.cpu.line_tables import function_at_line, with_line_table
from engine.kernels.debug_locations import InstructionLocation, aarch64_locations, llvm_locations, x86_locations
from engine.kernels.link_listings import MOVED_LABEL, NO_LOCATION_LABEL, listing_of_links
from engine.records.kernels import KernelResources, LineLink, Listing, TargetRecord

CPU = "cpu"
FILE = "kernel.ll"
"""File of a kernel's text in its line table; functions have their names, so one name does."""


@dataclass(frozen=True)
class CpuMachine:
    """A CPU as LLVM names it, with its vector registers."""

    triple: str
    cpu: str
    features: str
    unit: VectorUnit

    @property
    def architecture(self) -> str:
        """The name of its assembly: "x86-64" or "AArch64"."""
        return "AArch64" if self.triple.startswith(("aarch64", "arm64")) else "x86-64"

    def code_generator(self) -> Any:
        """Return LLVM's code generator, with comments in the assembly on spills and loops."""
        generator = llvm.Target.from_triple(self.triple).create_target_machine(self.cpu, self.features, opt=3, jit=True)
        generator.set_asm_verbosity(True)
        return generator


@functools.cache
def host_machine() -> CpuMachine:
    """Return this machine's CPU."""
    initialize()
    features = llvm.get_host_cpu_features().flatten()
    return CpuMachine(llvm.get_default_triple(), llvm.get_host_cpu_name(), features, host_unit())


@functools.lru_cache(maxsize=256)
def compile_for_cpu(name: str, text: str, machine: CpuMachine | None = None) -> TargetRecord:
    """Compile a kernel's text for a CPU, this one by default.

    A failure is in the record's ``error``. Kernels that an edit leaves as they are need no second compile.
    """
    if missing := why_llvm_is_missing():
        return TargetRecord(CPU, error=missing)
    started, machine = time.perf_counter(), machine or host_machine()
    try:
        module, generator = optimized_module(text, machine)
        optimized, assembly = str(module), generator.emit_assembly(module)
    except RuntimeError as error:
        return TargetRecord(CPU, error=f"LLVM could not compile {name}: {error_line(error)}")
    return record_of_module(text, optimized, assembly, machine, time.perf_counter() - started)


def record_of_module(text: str, module: str, assembly: str, machine: CpuMachine, seconds: float) -> TargetRecord:
    """Return the record of a kernel with its listings and resources."""
    functions = function_at_line(text)
    read = aarch64_locations if machine.architecture == "AArch64" else x86_locations
    weak = frozenset(n for n, line in enumerate(text.split("\n"), 1) if line.lstrip().startswith(("br ", "define ")))
    locations = lines_by_use(list(read(assembly)), weak, destination_first=machine.architecture == "AArch64")
    listings = (
        _listing("llopt", module, values_by_use(llvm_locations(module)), functions),
        _listing("asm", assembly, locations, functions),
    )
    return TargetRecord(CPU, listings, _resources(text, assembly, locations, machine), seconds)


def optimized_module(text: str, machine: CpuMachine) -> tuple[Any, Any]:
    """Return the optimized module of a kernel's text, with its code generator."""
    generator = machine.code_generator()
    source = with_line_table(text, FILE) + function_attributes(machine.unit.bits)
    module = parse_module(source, machine.triple, generator)
    optimize(module, generator)
    return module, generator


_DEBUG_LINE = re.compile(
    r"!|; ModuleID|source_filename|target |attributes #|; Function Attrs|declare |"
    r"\s*\.(loc|file|cfi_\w+|ident|addrsig\w*|size|type|globl|text)\b|\.L(tmp|func_\w+?)\d+:|\s*$"
)
"""Lines that hold only debug information or declarations."""
_DEBUG_SUFFIX = re.compile(r",? !dbg !\d+")
_DEBUG_SECTION = re.compile(r'\s*\.section\s+"?\.(debug|note)')


def _listing(stage: str, text: str, locations: Iterable[InstructionLocation], functions: Mapping[int, str]) -> Listing:
    """Return a listing without debug information, each instruction linked or labeled."""
    lines, numbers = [], dict[int, int]()
    for number, line in enumerate(text.split("\n"), 1):
        if _DEBUG_SECTION.match(line):
            break
        if not _DEBUG_LINE.match(line):
            lines.append(_DEBUG_SUFFIX.sub("", line))
            numbers[number] = len(lines)
    links = (_link(p._replace(line=numbers[p.line]), functions) for p in locations if p.line in numbers)
    return listing_of_links(stage, "\n".join(lines) + "\n", links)


def _link(location: InstructionLocation, functions: Mapping[int, str]) -> LineLink:
    """Link an instruction to the line of its outermost call.

    The inner functions are its library chain.
    """
    lines = [frame.line for frame in location.chain]
    if not lines or not lines[-1]:
        return LineLink(location.line, label=_label(location.text, is_moved=bool(lines)))
    library = tuple(functions.get(line, "") for line in reversed(lines[:-1]) if line)
    return LineLink(location.line, lines[-1], library)


_LABELS = (
    (r"(nop|vzeroupper)", "generated: padding"),
    (r"(push|pop|stp|ldp|sub[qs]?\s.*(%rsp|sp)$|add[qs]?\s.*(%rsp|sp)$|ret)", "generated: prologue or return"),
    (r"(j\w+|b(\.\w+)?|cbn?z|tbn?z|br|phi|%\S+ = phi)\b", "generated: control flow"),
)


def _label(code: str, *, is_moved: bool) -> str:
    own_label = next((label for pattern, label in _LABELS if re.match(pattern, code)), "")
    return own_label or (MOVED_LABEL if is_moved else NO_LOCATION_LABEL)


# ---- resources ----------------------------------------------------------------------------------------------------

_SPILL = re.compile(r"(#|//|;) .*\b(Spill|Reload)\b")
_WIDTHS = (("zmm", 512), ("ymm", 256))


def _resources(text: str, assembly: str, locations: list[InstructionLocation], machine: CpuMachine) -> KernelResources:
    spills = Counter(match[2] for line in assembly.splitlines() if (match := _SPILL.search(line)))
    lanes = re.match(r"; .*: (\d+) lanes", text)
    is_arm = machine.architecture == "AArch64"
    mix = Counter((_arm_kind if is_arm else _x86_kind)(location.text) for location in locations)
    code = "\n".join(location.text for location in locations)
    bits = next((width for name, width in _WIDTHS if name in code), 128 if _uses_vectors(mix) else 0)
    return KernelResources(
        spills=spills["Spill"],
        reloads=spills["Reload"],
        cpu=f"{machine.cpu or 'generic'} ({machine.architecture}, {machine.unit.name})",
        vector_bits=bits,
        lanes=int(lanes[1]) if lanes else 1,
        instruction_mix={kind: mix[kind] for kind in KINDS if mix[kind]},
    )


KINDS = ("vector arithmetic", "vector moves", "loads", "stores", "scalar", "branches", "calls")
"""Kinds of instructions, in the order they are shown."""


def _uses_vectors(mix: Counter[str]) -> bool:
    return bool(mix["vector arithmetic"] + mix["vector moves"])


_X86_MOVES = re.compile(r"v?(mov|broadcast|perm|shuf|unpck|blend|insert|extract|pbroadcast|pinsr|pextr|cvt)|kmov")
_ARM_MOVES = re.compile(r"(dup|mov|movi|fmov|ext|zip|uzp|trn|tbl|ins|umov|xtn|[su]xtl)\b")


def _x86_kind(code: str) -> str:
    """Return the kind of an x86-64 instruction in AT&T syntax: the destination comes last."""
    name, _, operands = code.partition("\t")
    if name.startswith("call"):
        return "calls"
    if name.startswith(("j", "ret")):
        return "branches"
    is_move = _X86_MOVES.match(name) is not None
    if is_move and "(" in operands:
        return "stores" if "(" in re.split(r",(?![^(]*\))", operands)[-1] else "loads"
    if not re.search(r"%[xyz]mm|%k\d", operands):
        return "scalar"
    return "vector moves" if is_move else "vector arithmetic"


def _arm_kind(code: str) -> str:
    """Return the kind that an AArch64 instruction counts as."""
    name, _, operands = code.partition("\t")
    if name in ("bl", "blr"):
        return "calls"
    if re.match(r"(b|b\.\w+|br|ret|cbn?z|tbn?z)$", name):
        return "branches"
    if name.startswith(("ld", "prfm")):
        return "loads"
    if name.startswith("st"):
        return "stores"
    if not re.search(r"\b[vqds]\d+\b", operands):
        return "scalar"
    return "vector moves" if _ARM_MOVES.match(name) else "vector arithmetic"
