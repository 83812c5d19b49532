"""Compile the source text of a Triton kernel to a binary.

Shared by the targets, which show the binary, and the runtime, which launches it. The module imports no
torch, and imports Triton only when used: worker processes start with this module.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from engine.errors import error_line
from engine.ir.generated_sources import store_source
from engine.ir.static_sizes import static_size
from engine.process_state import make_rlock

if TYPE_CHECKING:
    from engine.ir.kernels.generated_kernel import GeneratedKernel

ALIGNMENT = 16
"""Bytes of a pointer, or elements of a size, that Triton's launcher specializes on.

PyTorch's allocators align to more.
"""

ConstexprValue = int | float | bool | str | None

COMPILE_LOCK = make_rlock()
"""Lock that is held while a kernel's source is loaded and compiled.

Kernels with equal names share a file name in ``linecache``, from which Triton reads the source. LLVM is not
safe for two compilers in one process.
"""


@dataclass(frozen=True)
class KernelConfig:
    """A smaller configuration of a kernel: other block sizes, warps or stages.

    ``grid_scale`` holds the factors by which the two sides of the grid grow. ``text`` is another source with
    the same parameters, which reads long rows in a loop; it is empty if the kernel's own source is used.
    ``line_map[i]`` is the line of the kernel's own source that corresponds to line i + 1 of ``text``, or 0.
    """

    constants: tuple[tuple[str, int], ...]
    num_warps: int
    num_stages: int
    grid_scale: tuple[int, int] = (1, 1)
    text: str = ""
    line_map: tuple[int, ...] = ()

    def __str__(self) -> str:
        parts = (*(f"{k}={v}" for k, v in self.constants), f"{self.num_warps} warps, {self.num_stages} stages")
        return ", ".join(parts) + (", with rows read in a loop" if self.text else "")


@dataclass(frozen=True)
class CompileUnit:
    """Input of Triton's compiler for one kernel, as plain values.

    Equal units compile to equal binaries.

    ``signature`` pairs every parameter with Triton's name of its type. ``aligned`` names the parameters whose
    value is a multiple of 16.
    """

    name: str
    text: str
    signature: tuple[tuple[str, str], ...]
    constants: tuple[tuple[str, ConstexprValue], ...]
    aligned: tuple[str, ...]
    num_warps: int
    num_stages: int
    fallback_configs: tuple[KernelConfig, ...] = ()
    """Configurations to try, in order, when the target lacks shared memory or registers."""
    line_map: tuple[int, ...] = ()
    """The kernel's own line for each line of ``text``, or 0; empty for its own text."""

    @property
    def config(self) -> KernelConfig:
        """The block sizes, warps and stages that the unit is compiled with."""
        sizes = tuple((k, v) for k, v in self.constants if isinstance(v, int))
        return KernelConfig(sizes, self.num_warps, self.num_stages)

    def with_config(self, config: KernelConfig) -> CompileUnit:
        """Return the unit with this configuration and no fallbacks."""
        constants = tuple({**dict(self.constants), **dict(config.constants)}.items())
        warps, stages, text = config.num_warps, config.num_stages, config.text or self.text
        return replace(
            self,
            text=text,
            line_map=config.line_map,
            constants=constants,
            num_warps=warps,
            num_stages=stages,
            fallback_configs=(),
        )

    @property
    def file_name(self) -> str:
        """The file name in debug information: without a folder, so equal on every machine."""
        return f"{self.name}.py"


def compile_unit_of(source: GeneratedKernel, misaligned: frozenset[str] = frozenset()) -> CompileUnit:
    """Return the compile unit of a kernel.

    ``misaligned`` names pointer parameters whose address is not known to be a multiple of 16.
    """
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


def _constant(value: Any) -> ConstexprValue:
    if isinstance(value, (bool, float, str)) or value is None:
        return value
    size = static_size(value)
    return float(value) if size is None else size


@functools.lru_cache(maxsize=1024)
def jit_function(name: str, text: str) -> Any:
    """Return the jitted function ``name`` that a kernel's module text defines.

    The text is stored in ``linecache`` under the unit's file name, where Triton and tracebacks read it.
    """
    file = f"{name}.py"
    namespace: dict[str, Any] = {"__name__": f"engine_kernel_{name}", "__file__": file}
    with COMPILE_LOCK:
        store_source(file, text)
        exec(compile(text, file, "exec"), namespace)
    return namespace[name]


def run_triton_compiler(unit: CompileUnit, target: tuple[str, int | str, int] | None = None) -> Any:
    """Return Triton's ``CompiledKernel`` for ``target``, or for the current GPU.

    ``target`` is (backend, architecture, threads per warp).

    Raises:
        Exception: any error of Triton's compiler.
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
    if "TRITON_DEFAULT_FP_FUSION" not in os.environ:  # the default becomes False after Triton 3.9
        options["enable_fp_fusion"] = True
    if (
        "tl.device_assert(" in unit.text
    ):  # Triton drops the assertion unless debug is on; the other debug checks stay off.
        options |= {"debug": True, "sanitize_overflow": False}
    with COMPILE_LOCK:
        return triton.compile(source, target=GPUTarget(*target) if target else None, options=options)


class OutOfTargetResources(Exception):
    """The compiled kernel needs more of a resource than the target has."""

    def __init__(self, resource: str, needed: int, limit: int) -> None:
        super().__init__(f"it needs {needed:,} {resource}, and the target has {limit:,}")


MAX_SPILLED_REGISTERS = 128
"""Spilled registers per thread above which a smaller configuration is tried.

The unit is 32-bit words.
"""


@dataclass(frozen=True)
class FittedKernel:
    """The result of compiling a unit with fallback configurations.

    ``compiled`` is the result of the compile function and ``config`` the configuration used. ``reason``
    explains why it differs from the planned one; empty if it does not.
    """

    compiled: Any
    config: KernelConfig
    reason: str = ""


def compile_with_fallback_configs(
    unit: CompileUnit, make: Callable[[CompileUnit], Any], spills: Callable[[Any], int | None]
) -> FittedKernel:
    """Compile ``unit``, or the first smaller configuration that fits the target.

    ``spills`` returns spilled words per thread. If every configuration spills too much, the first one that
    otherwise fits is used: it is slow but correct.

    Raises:
        Exception: an error of ``make`` that is not a lack of resources, or such a lack in every configuration.
    """
    planned, spilling, lack, shortage = unit.config, None, "", None
    for config in (planned, *unit.fallback_configs):
        try:
            kernel = make(unit if config is planned else unit.with_config(config))
        except Exception as error:
            if not is_out_of_resources(error):
                raise
            shortage, lack = shortage or error, lack or error_line(error)
            continue
        spilled = spills(kernel) or 0
        fitted = FittedKernel(kernel, config, lack and f"It runs with {config} instead of {planned}: {lack}.")
        if spilled <= MAX_SPILLED_REGISTERS:
            return fitted
        lack = lack or f"it spills {spilled} registers per thread"
        spilling = spilling or fitted
    if spilling is not None:
        return spilling
    assert shortage is not None
    raise shortage


def is_out_of_resources(error: BaseException) -> bool:
    """Return True if a smaller configuration may avoid this error.

    The error is raised by this module, by Triton before a launch, or by NVIDIA's assembler.
    """
    if isinstance(error, OutOfTargetResources) or type(error).__name__ == "OutOfResources":
        return True
    return any(phrase in str(error) for phrase in ("uses too much shared data", "Insufficient register"))
