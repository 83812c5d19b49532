"""Bind a kernel to this machine's CPU: a function of Python numbers that runs it."""

from __future__ import annotations

import functools

from engine.ir.kernels.compile_llvm import compile_function
from engine.ir.kernels.generated_kernel import GeneratedKernel
from engine.runtime.kernel_launchers import Launcher


def cpu_launcher(source: GeneratedKernel, misaligned: frozenset[str] = frozenset()) -> Launcher:
    """Compile a kernel for this CPU; equal kernels are compiled once.

    The launcher takes an address or a number for each parameter, and returns 0, or the number of the failed check.

    Raises:
        CannotCompile: LLVM rejects the kernel.
    """
    kinds = tuple(
        "pointer" if a.kind == "pointer" else "float" if a.triton_type.startswith("fp") else "size" for a in source.args
    )
    return _compiled(source.name, source.text, kinds, source.grid[1])


@functools.lru_cache(maxsize=4096)
def _compiled(name: str, text: str, kinds: tuple[str, ...], chunk: int) -> Launcher:
    return compile_function(name, text, kinds, chunk=chunk)
