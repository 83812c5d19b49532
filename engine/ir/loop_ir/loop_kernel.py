"""A kernel before it has text: blocks, tiling and loop ops."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from engine.ir.kernels.lowered_program import Buffer
from engine.ir.loop_ir.index_expr import (
    LoopVar,
)
from engine.ir.loop_ir.ops import LoopIROp


@dataclass(frozen=True)
class MatmulConfig:
    """How a product of matrices is cut: tiles of ``rows`` x ``cols``, summed up over slices of ``inner``; ``group`` rows of tiles share columns."""

    block_m: int
    block_n: int
    block_k: int
    num_warps: int = 4
    num_stages: int = 3
    group_m: int = 8

    def __str__(self) -> str:
        return f"{self.block_m}x{self.block_n}x{self.block_k}, {self.num_warps} warps, {self.num_stages} stages"


@dataclass(frozen=True)
class MatmulLoops:
    """What makes a kernel one of a product template: its "dot" op is summed over slices of the inner dimension.

    ``across`` and ``down`` are that dimension as the left side's columns and as the right side's rows; ``batch`` counts matrices.
    """

    lhs_k: LoopVar
    rhs_k: LoopVar
    batch: LoopVar
    config: MatmulConfig
    precision: str


@dataclass(frozen=True)
class BlockConfig:
    """``x_block`` outer elements a program (1: the outer index is a scalar), ``r_block`` inner elements at a time (0: no inner loop)."""

    x_block: int
    r_block: int
    is_looped: bool
    num_warps: int
    has_2d_grid: bool = False
    """Each program works on a tile: the grid has a second dimension."""
    prefetch_depth: int = 0
    """Turns of the loop whose loads are under way at once, through shared memory; 0: as many as the compiler finds."""

    @property
    def is_one_row_per_program(self) -> bool:
        """Whether a program works on one row only."""
        return self.r_block > 0 and self.x_block == 1

    def __str__(self) -> str:
        sizes = f"{self.x_block}" if self.r_block == 0 else f"{self.x_block}x{self.r_block}"
        loop = " in a loop" if self.is_looped else ""
        ahead = f", {self.prefetch_depth} turns under way" if self.prefetch_depth else ""
        return f"{sizes}{loop}, {self.num_warps} warps{ahead}"


@dataclass(frozen=True)
class LoopKernel:
    """One kernel before it has text: operations in order, over a flat outer loop ``x`` and a flat inner (reduced) loop ``r``.

    ``names`` are what it does, most telling first, ``name`` what its function is called; ``nodes`` the ids of the ATen nodes in it;
    ``prefix`` starts its loop ops' ids.
    """

    id: str
    prefix: str
    name_parts: tuple[str, ...]
    ops: tuple[LoopIROp, ...]
    x: LoopVar
    r: LoopVar | None
    buffers: Mapping[str, Buffer]
    nodes: tuple[str, ...]
    uses_int64_index: bool = False
    bytes_moved: int | None = None
    flops: int | None = None
    name: str = ""
    initial_values: Mapping[str, str | float] = field(default_factory=dict)
    """Buffers that it changes rather than fills: what each starts from, another buffer or a number."""
    matmul: MatmulLoops | None = None
    """Its loops are those of a template: ``x`` and ``r`` are rows and columns of the product."""
    block_config: BlockConfig | None = None
    """How it is cut, None: as is usual for its sizes."""

    @property
    def is_2d_pointwise(self) -> bool:
        """Whether the inner loop only spans a tile: nothing is put together along it."""
        return self.r is not None and not any(op.name in ("reduce", "scan") for op in self.ops)
