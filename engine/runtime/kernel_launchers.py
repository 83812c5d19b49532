"""Kernel launchers: bind a kernel to the current GPU or to Triton's interpreter."""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch

from engine.ir.kernels.compile_triton import (
    CompileUnit,
    compile_unit_of,
    compile_with_fallback_configs,
    jit_function,
    run_triton_compiler,
)
from engine.runtime.triton_interpreter import libdevice, patches

if TYPE_CHECKING:  # sympy, which the interpreter's processes do not need
    from engine.ir.kernels.generated_kernel import GeneratedKernel

_log = logging.getLogger("engine")

Launcher = Callable[..., Any]
"""``launch(grid x, grid y, grid z, stream, *arguments)``.

It takes one argument per kernel parameter, constexprs included. The launcher of a CPU kernel takes only ``arguments``,
with addresses for pointers, and returns the number of the bounds check that failed, or 0.
"""


KernelBinder = Callable[["GeneratedKernel", frozenset[str]], Launcher]
"""Creates the launcher of a kernel.

The names are of pointer parameters whose address may not be a multiple of 16 bytes.
"""


def gpu_launcher(source: GeneratedKernel, misaligned: frozenset[str] = frozenset()) -> Launcher:
    """Compile a kernel for the current GPU and load it; equal kernels are loaded once.

    Raises:
        Exception: whatever Triton's compiler or the driver raises.
    """
    return _load_launcher(compile_unit_of(source, misaligned), torch.cuda.current_device())


@functools.lru_cache(maxsize=1024)
def _load_launcher(unit: CompileUnit, _device: int) -> Launcher:
    fitted = compile_with_fallback_configs(unit, _build_on_device, lambda kernel: kernel.n_spills)
    kernel, (wider, higher) = fitted.compiled, fitted.config.grid_scale
    run, function, metadata = kernel.run, kernel.function, kernel.packed_metadata
    if fitted.reason:
        _log.warning("%s: %s", unit.name, fitted.reason)
        return _smaller_block_launcher(run, function, metadata, wider, higher)

    def launch(x: int, y: int, z: int, stream: int, *arguments: Any) -> None:
        # The three Nones: launch metadata and the enter and exit hooks, which only profilers set.
        run(x, y, z, stream, function, metadata, None, None, None, *arguments)

    return launch


def _build_on_device(unit: CompileUnit) -> Any:
    kernel = run_triton_compiler(unit)
    kernel.run  # noqa: B018 - loads the binary, which sets ``function`` and shows that the device has the resources
    return kernel


def _smaller_block_launcher(run: Any, function: Any, metadata: Any, wider: int, higher: int) -> Launcher:
    """Return a launcher for smaller blocks than planned; the grid is larger in proportion.

    Elements beyond the tensors are masked.
    """

    def launch(x: int, y: int, z: int, stream: int, *arguments: Any) -> None:
        run(x * wider, y * higher, z, stream, function, metadata, None, None, None, *arguments)

    return launch


def interpreter_kernel(name: str, text: str) -> Any:
    """Return the kernel's JIT function for Triton's interpreter; it is indexed by the grid."""
    libdevice.install_libdevice()
    patches.patch_interpreter()
    return jit_function(name, text)
