"""Launcher that runs kernels in Triton's interpreter."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from engine.runtime.kernel_launchers import Launcher, interpreter_kernel

if TYPE_CHECKING:  # sympy, which the interpreter's processes do not need
    from engine.ir.kernels.generated_kernel import GeneratedKernel


def interpreter_launcher(source: GeneratedKernel, misaligned: frozenset[str] = frozenset()) -> Launcher:
    """Return a launcher that interprets the kernel on CPU tensors.

    Works only in a process that had TRITON_INTERPRET=1 before Triton was imported.
    """
    function = interpreter_kernel(source.name, source.text)

    def launch(x: int, y: int, z: int, stream: int, *arguments: Any) -> None:
        function[(x, y, z)](*arguments)

    return launch
