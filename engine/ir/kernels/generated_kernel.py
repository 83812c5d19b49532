"""Kernel text with its arguments, grid and line-to-op map."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import sympy

from engine.ir.kernels.compile_triton import KernelConfig
from engine.records.kernels import LoopOp

Size = int | sympy.Expr


@dataclass(frozen=True)
class KernelArg:
    """One parameter of a Triton kernel.

    ``kind`` is "pointer", "size" or "constexpr". For a pointer, ``buffer`` names the program's buffer and
    ``is_written`` is True if the kernel stores to it. For a size, ``value`` is an int or a sympy expression, of
    a fraction if the type is a float. For a constexpr, ``value`` is the compile-time constant. ``triton_type``
    is the type in the signature: ``*fp32``, ``i32``, ``constexpr``. ``initial_value`` is the required content
    of a written buffer before the launch: another buffer's name, a number for all elements, or None for any
    content.
    """

    name: str
    kind: Literal["pointer", "size", "constexpr"]
    triton_type: str
    buffer: str = ""
    value: Size | bool | str | None = None
    is_written: bool = False
    initial_value: str | float | None = None

    @property
    def is_fraction(self) -> bool:
        """True for a fraction that the host computes at each call."""
        return self.kind == "size" and self.triton_type.startswith(("fp", "bf"))

    @property
    def copied_buffer(self) -> str:
        """The buffer whose content is its initial value; empty for a number and without one."""
        return self.initial_value if isinstance(self.initial_value, str) else ""


@dataclass(frozen=True)
class GeneratedKernel:
    """One Triton kernel: module source with imports that defines the jitted function ``name``.

    ``line_ops[i]`` holds the ids of the loop ops of line i + 1. ``grid`` holds up to three sizes (ints or
    sympy expressions). ``bytes_moved`` and ``flops`` are counted from the loops.
    """

    id: str
    name: str
    text: str
    args: tuple[KernelArg, ...]
    grid: tuple[Size, ...]
    line_ops: tuple[tuple[str, ...], ...]
    ops: tuple[LoopOp, ...]
    nodes: tuple[str, ...]
    """Ids of the ATen nodes fused into the kernel."""
    num_warps: int = 4
    num_stages: int = 1
    bytes_moved: Size | None = None
    flops: Size | None = None
    fallback_configs: tuple[KernelConfig, ...] = ()
    """Other configurations, for targets with too little shared memory or too few registers."""
    checks: tuple[str, ...] = ()
    """User line of each bounds check of a CPU kernel, by the status that it returns, less one."""
    loads_tiles: bool = False
    """True for a CPU kernel that reads a transposed tensor by square tiles."""
