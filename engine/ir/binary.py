"""A kernel's text as Triton's compiled binary: shared by the targets (which show it) and the runtime (which launches it).

Imports neither torch nor, until used, Triton: worker processes start with this module.
"""

from __future__ import annotations

import functools
import linecache
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from engine.ir.kernel import KernelSource

ALIGNMENT = 16
"""Bytes, and elements of a size: what Triton's own launcher specialises on. PyTorch's allocators align further."""

Constant = int | float | bool | str | None


@dataclass(frozen=True)
class Unit:
    """What Triton needs to compile one kernel, as plain values: equal units give equal binaries.

    ``signature`` pairs every parameter with Triton's word for its type; ``aligned`` are those whose value is a multiple of 16.
    """

    name: str
    text: str
    signature: tuple[tuple[str, str], ...]
    constants: tuple[tuple[str, Constant], ...]
    aligned: tuple[str, ...]
    num_warps: int
    num_stages: int

    @property
    def file(self) -> str:
        """The file name that debug information carries: no folder, the same on every machine."""
        return f"{self.name}.py"


def unit_of(source: KernelSource, misaligned: frozenset[str] = frozenset()) -> Unit:
    """The unit of a kernel. ``misaligned`` names pointer parameters whose address is not known to be a multiple of 16."""
    aligned = tuple(
        a.name
        for a in source.args
        if (a.kind == "pointer" and a.name not in misaligned)
        or (a.kind == "size" and (size := static_size(a.value)) is not None and size % ALIGNMENT == 0)
    )
    return Unit(
        name=source.name,
        text=source.text,
        signature=tuple((a.name, "constexpr" if a.kind == "constexpr" else a.triton_type) for a in source.args),
        constants=tuple((a.name, _constant(a.value)) for a in source.args if a.kind == "constexpr"),
        aligned=aligned,
        num_warps=source.num_warps,
        num_stages=source.num_stages,
    )


def static_size(value: Any) -> int | None:
    """``value`` as an int if it is one (sympy's included), None where it is symbolic."""
    if isinstance(value, int):
        return int(value)
    return int(value) if getattr(value, "is_Integer", False) else None


def _constant(value: Any) -> Constant:
    if isinstance(value, (bool, float, str)) or value is None:
        return value
    size = static_size(value)
    return float(value) if size is None else size


@functools.lru_cache(maxsize=1024)
def jitted(name: str, text: str) -> Any:
    """The jitted function ``name`` that a kernel's module text defines.

    The text is put in ``linecache`` under the unit's file name, where Triton (and tracebacks) read it.
    """
    file = f"{name}.py"
    # No modification time: linecache then never looks for such a file on disk.
    linecache.cache[file] = (len(text), None, text.splitlines(keepends=True), file)
    namespace: dict[str, Any] = {"__name__": f"engine_kernel_{name}", "__file__": file}
    exec(compile(text, file, "exec"), namespace)
    return namespace[name]


def build(unit: Unit, target: tuple[str, int | str, int] | None = None) -> Any:
    """Triton's ``CompiledKernel`` for ``target`` (backend, architecture, threads a warp), or for the current GPU.

    Raises:
        Exception: whatever Triton's compiler raises.
    """
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    function = jitted(unit.name, unit.text)
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
    return triton.compile(source, target=GPUTarget(*target) if target else None, options=options)
