"""Kernel text with its arguments, grid and line-to-op map."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import sympy

from engine.ir.kernels.compile_triton import KernelConfig
from engine.records.lowering import LoopOp

Size = int | sympy.Expr


@dataclass(frozen=True)
class KernelArg:
    """One parameter of a Triton kernel.

    ``kind``: "pointer" (``buffer`` names the program's buffer, ``written`` if the kernel stores to it), "size" (``value`` is an int or
    a sympy expression; of a fraction where the type is a float), "constexpr" (``value`` is the compile-time constant). ``triton_type`` is the signature's word: ``*fp32``, ``i32``, ``constexpr``.
    ``start``: what a written buffer must hold before the launch: what another buffer holds, or a number everywhere (None: anything).
    """

    name: str
    kind: Literal["pointer", "size", "constexpr"]
    triton_type: str
    buffer: str = ""
    value: Size | bool | str | None = None
    is_written: bool = False
    initial_value: str | float | None = None


@dataclass(frozen=True)
class GeneratedKernel:
    """One Triton kernel: a complete module text (imports included) that defines the jitted function ``name``.

    ``line_ops[i]`` are the loop-op ids behind line i + 1. ``grid`` holds up to three sizes (ints or sympy expressions).
    ``bytes_moved`` and ``flops`` are counted from the loops, None when symbolic.
    """

    id: str
    name: str
    text: str
    args: tuple[KernelArg, ...]
    grid: tuple[Size, ...]
    line_ops: tuple[tuple[str, ...], ...]
    ops: tuple[LoopOp, ...]
    nodes: tuple[str, ...]
    """Ids of the ATen nodes fused into it."""
    num_warps: int = 4
    num_stages: int = 1
    bytes_moved: int | None = None
    flops: int | None = None
    fallback_configs: tuple[KernelConfig, ...] = ()
    """Other ways to run it, for targets that have too little shared memory or too few registers."""
