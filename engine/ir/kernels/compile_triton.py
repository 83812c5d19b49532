"""A kernel's text as Triton's compiled binary: shared by the targets (which show it) and the runtime (which launches it).

Imports neither torch nor, until used, Triton: worker processes start with this module.
"""

from __future__ import annotations

import functools
import linecache
import threading
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from engine.ir.kernels.generated_kernel import GeneratedKernel

ALIGNMENT = 16
"""Bytes, and elements of a size: what Triton's own launcher specialises on. PyTorch's allocators align further."""

ConstexprValue = int | float | bool | str | None

COMPILE_LOCK = threading.RLock()
"""Held while a kernel is read and compiled: kernels of one name share a file name in ``linecache``, from where Triton reads their text, and
LLVM is not made for two compilers in one process."""


@dataclass(frozen=True)
class KernelConfig:
    """A smaller way to run a kernel: other block sizes, warps or stages, and by how much each side of the grid grows.

    ``text`` is another text with the same parameters, empty for the kernel's own: one that reads long rows part by part. ``lines[i]`` is
    the line of the kernel's own text that does what line i + 1 of it does, 0 where none does.
    """

    constants: tuple[tuple[str, int], ...]
    num_warps: int
    num_stages: int
    grid_scale: tuple[int, int] = (1, 1)
    text: str = ""
    line_map: tuple[int, ...] = ()

    def __str__(self) -> str:
        parts = (*(f"{k}={v}" for k, v in self.constants), f"{self.num_warps} warps, {self.num_stages} stages")
        return ", ".join(parts) + (", its rows read part by part" if self.text else "")


@dataclass(frozen=True)
class CompileUnit:
    """What Triton needs to compile one kernel, as plain values: equal units give equal binaries.

    ``signature`` pairs every parameter with Triton's word for its type; ``aligned`` are those whose value is a multiple of 16.
    """

    name: str
    text: str
    signature: tuple[tuple[str, str], ...]
    constants: tuple[tuple[str, ConstexprValue], ...]
    aligned: tuple[str, ...]
    num_warps: int
    num_stages: int
    fallback_configs: tuple[KernelConfig, ...] = ()
    """What to try, in this order, where the target has too little shared memory or too few registers."""
    line_map: tuple[int, ...] = ()
    """Where the text is another than the kernel's own: the line of that for each of its lines, 0 for none."""

    @property
    def config(self) -> KernelConfig:
        """How it runs as it is."""
        sizes = tuple((k, v) for k, v in self.constants if isinstance(v, int))
        return KernelConfig(sizes, self.num_warps, self.num_stages)

    def with_config(self, way: KernelConfig) -> CompileUnit:
        """The unit that runs this way."""
        constants = tuple({**dict(self.constants), **dict(way.constants)}.items())
        warps, stages, text = way.num_warps, way.num_stages, way.text or self.text
        return replace(
            self,
            text=text,
            line_map=way.line_map,
            constants=constants,
            num_warps=warps,
            num_stages=stages,
            fallback_configs=(),
        )

    @property
    def file_name(self) -> str:
        """The file name that debug information carries: no folder, the same on every machine."""
        return f"{self.name}.py"


def compile_unit_of(source: GeneratedKernel, misaligned: frozenset[str] = frozenset()) -> CompileUnit:
    """The unit of a kernel. ``misaligned`` names pointer parameters whose address is not known to be a multiple of 16."""
    aligned = tuple(
        a.name
        for a in source.args
        if (a.kind == "pointer" and a.name not in misaligned)
        or (a.kind == "size" and (size := static_size(a.value)) is not None and size % ALIGNMENT == 0)
    )
    return CompileUnit(
        name=source.name,
        text=source.text,
        signature=tuple((a.name, "constexpr" if a.kind == "constexpr" else a.triton_type) for a in source.args),
        constants=tuple((a.name, _constant(a.value)) for a in source.args if a.kind == "constexpr"),
        aligned=aligned,
        num_warps=source.num_warps,
        num_stages=source.num_stages,
        fallback_configs=source.fallback_configs,
    )


def static_size(value: Any) -> int | None:
    """``value`` as an int if it is one (sympy's included), None where it is symbolic."""
    if isinstance(value, int):
        return int(value)
    return int(value) if getattr(value, "is_Integer", False) else None


def _constant(value: Any) -> ConstexprValue:
    if isinstance(value, (bool, float, str)) or value is None:
        return value
    size = static_size(value)
    return float(value) if size is None else size


@functools.lru_cache(maxsize=1024)
def jit_function(name: str, text: str) -> Any:
    """The jitted function ``name`` that a kernel's module text defines.

    The text is put in ``linecache`` under the unit's file name, where Triton (and tracebacks) read it.
    """
    file = f"{name}.py"
    namespace: dict[str, Any] = {"__name__": f"engine_kernel_{name}", "__file__": file}
    with COMPILE_LOCK:
        # No modification time: linecache then never looks for such a file on disk.
        linecache.cache[file] = (len(text), None, text.splitlines(keepends=True), file)
        exec(compile(text, file, "exec"), namespace)
    return namespace[name]


def run_triton_compiler(unit: CompileUnit, target: tuple[str, int | str, int] | None = None) -> Any:
    """Triton's ``CompiledKernel`` for ``target`` (backend, architecture, threads a warp), or for the current GPU.

    Raises:
        Exception: whatever Triton's compiler raises.
    """
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    function = jit_function(unit.name, unit.text)
    names = [name for name, _ in unit.signature]
    source = ASTSource(
        fn=function,
        signature=dict(unit.signature),
        constexprs=dict(unit.constants),
        attrs={(names.index(name),): [["tt.divisibility", ALIGNMENT]] for name in unit.aligned},
    )
    options: dict[str, Any] = {"num_warps": unit.num_warps, "num_stages": unit.num_stages}
    if "tl.device_assert(" in unit.text:  # which Triton leaves out otherwise; what else it would check is left out
        options |= {"debug": True, "sanitize_overflow": False}
    with COMPILE_LOCK:
        return triton.compile(source, target=GPUTarget(*target) if target else None, options=options)


class OutOfTargetResources(Exception):
    """A compiled kernel needs more of something than its target has."""

    def __init__(self, what: str, needed: int, limit: int) -> None:
        super().__init__(f"{needed:,} {what} are needed, and there are {limit:,}")


MAX_SPILLED_REGISTERS = 128
"""Registers, in 32-bit words a thread, that there may be no room for before a smaller configuration is tried."""


@dataclass(frozen=True)
class FittedKernel:
    """What came of fitting a unit: ``made``, the configuration it was made with, and why not as planned (empty if it was)."""

    compiled: Any
    config: KernelConfig
    reason: str = ""


def compile_with_fallback_configs(
    unit: CompileUnit, make: Callable[[CompileUnit], Any], spills: Callable[[Any], int | None]
) -> FittedKernel:
    """``make(unit)``, or the same in the first smaller configuration that fits.

    Where ``spills`` (words a thread) tells that none has room for its registers, the first that fits otherwise is taken: it is slow, and right.

    Raises:
        Exception: what ``make`` raises for another cause than too few resources, or for want of them in every configuration.
    """
    planned, spilling, lack, shortage = unit.config, None, "", None
    for way in (planned, *unit.fallback_configs):
        try:
            made = make(unit if way is planned else unit.with_config(way))
        except Exception as error:
            if not is_out_of_resources(error):
                raise
            shortage, lack = shortage or error, lack or _one_line(error)
            continue
        spilled = spills(made) or 0
        found = FittedKernel(made, way, lack and f"It runs with {way} in place of {planned}: {lack}.")
        if spilled <= MAX_SPILLED_REGISTERS:
            return found
        lack = lack or f"{spilled} registers a thread found no room"
        spilling = spilling or found
    if spilling is not None:
        return spilling
    assert shortage is not None
    raise shortage


def is_out_of_resources(error: BaseException) -> bool:
    """Whether something smaller may be built where this was raised: by us, by Triton before a launch, or by NVIDIA's assembler."""
    if isinstance(error, OutOfTargetResources) or type(error).__name__ == "OutOfResources":
        return True
    return any(word in str(error) for word in ("uses too much shared data", "Insufficient register"))


def _one_line(error: BaseException) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[0].rstrip(".") if lines else type(error).__name__
