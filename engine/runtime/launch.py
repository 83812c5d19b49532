"""Bind a kernel to something that launches it: the GPU at hand, or Triton's interpreter on CPU tensors."""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable
from typing import Any, Protocol

import torch

from engine.ir.binary import Unit, build, fitted, jitted, unit_of
from engine.ir.kernel import KernelSource

_log = logging.getLogger("engine")

Launcher = Callable[..., None]
"""``launch(grid x, grid y, grid z, stream, *arguments)``: one argument a parameter, constexprs included."""


class Bind(Protocol):
    """Makes a launcher. ``misaligned`` names pointer parameters that may not be multiples of 16 bytes."""

    def __call__(self, source: KernelSource, misaligned: frozenset[str]) -> Launcher:
        """The launcher of one kernel."""
        ...


def on_gpu(source: KernelSource, misaligned: frozenset[str] = frozenset()) -> Launcher:
    """Compile for the current GPU and load there; equal kernels are loaded once.

    Raises:
        Exception: whatever Triton's compiler or the driver raises.
    """
    return _loaded(unit_of(source, misaligned), torch.cuda.current_device())


@functools.lru_cache(maxsize=1024)
def _loaded(unit: Unit, _device: int) -> Launcher:
    found = fitted(unit, _on_device, lambda kernel: kernel.n_spills)
    kernel, (wider, higher) = found.made, found.way.spread
    run, function, metadata = kernel.run, kernel.function, kernel.packed_metadata
    if found.reason:
        _log.warning("%s: %s", unit.name, found.reason)
        return _spread(run, function, metadata, wider, higher)

    def launch(x: int, y: int, z: int, stream: int, *arguments: Any) -> None:
        # The three Nones: launch metadata and the two hooks, which profilers set and nobody else.
        run(x, y, z, stream, function, metadata, None, None, None, *arguments)

    return launch


def _on_device(unit: Unit) -> Any:
    kernel = build(unit)
    kernel.run  # noqa: B018 - loads the binary: only then is there a function, and known that the device has room for it
    return kernel


def _spread(run: Any, function: Any, metadata: Any, wider: int, higher: int) -> Launcher:
    """A launcher of smaller blocks than planned, for which the grid is larger. What lies beyond the tensors is masked."""

    def launch(x: int, y: int, z: int, stream: int, *arguments: Any) -> None:
        run(x * wider, y * higher, z, stream, function, metadata, None, None, None, *arguments)

    return launch


def interpreted(name: str, text: str) -> Any:
    """The kernel's function, to be called with a grid, for Triton's interpreter."""
    from engine.runtime import libdevice, mended

    libdevice.install()
    mended.mend()
    return jitted(name, text)


def in_interpreter(source: KernelSource, misaligned: frozenset[str] = frozenset()) -> Launcher:
    """Interpret on CPU tensors: only in a process that had TRITON_INTERPRET=1 before Triton was imported."""
    function = interpreted(source.name, source.text)

    def launch(x: int, y: int, z: int, stream: int, *arguments: Any) -> None:
        function[(x, y, z)](*arguments)

    return launch
