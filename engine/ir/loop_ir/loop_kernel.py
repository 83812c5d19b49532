"""A kernel before it has text: blocks, tiling and loop ops."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from engine.ir.kernels.generated_kernel import KernelArg
from engine.ir.kernels.lowered_program import Buffer
from engine.ir.loop_ir.index_expr import LoopVar, Size
from engine.ir.loop_ir.ops import LoopIROp
from engine.ir.static_sizes import static_size


@dataclass(frozen=True)
class MatmulConfig:
    """Tile configuration of a matmul.

    Tiles have ``block_m`` x ``block_n`` elements and sum over slices of ``block_k``. ``group_m`` rows of tiles
    share columns.
    """

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
    """Loops of a matmul template; its "dot" op is summed over slices of the inner dimension.

    ``lhs_k`` and ``rhs_k`` are the inner dimension as columns of the left operand and rows of the right one.
    ``batch`` is the batch dimension.
    """

    lhs_k: LoopVar
    rhs_k: LoopVar
    batch: LoopVar
    config: MatmulConfig
    precision: str


@dataclass(frozen=True)
class BlockConfig:
    """Block sizes of a loop kernel.

    ``x_block`` is the number of outer elements per program; 1 makes the outer index a scalar. ``r_block`` is
    the number of inner elements at a time; 0 means no inner loop.
    """

    x_block: int
    r_block: int
    is_looped: bool
    num_warps: int
    has_2d_grid: bool = False
    """True if each program computes a 2D tile: the grid has a second dimension."""
    prefetch_depth: int = 0
    """Number of loop iterations whose loads are in flight, through shared memory.

    0: the compiler decides. It is ``num_stages`` of Triton's loop.
    """

    @property
    def is_one_row_per_program(self) -> bool:
        """True if a program processes only one row."""
        return self.r_block > 0 and self.x_block == 1

    def __str__(self) -> str:
        sizes = f"{self.x_block}" if self.r_block == 0 else f"{self.x_block}x{self.r_block}"
        loop = " in a loop" if self.is_looped else ""
        ahead = f", {self.prefetch_depth} iterations prefetched" if self.prefetch_depth else ""
        return f"{sizes}{loop}, {self.num_warps} warps{ahead}"


@dataclass(frozen=True)
class VectorConfig:
    """Bits of the vectors of a CPU kernel (0: none), and vectors per iteration."""

    bits: int
    copies: int


@dataclass(frozen=True)
class LoopNest:
    """Loops of a CPU kernel, outermost first; ``inner`` are reduced or scanned over."""

    outer: tuple[LoopVar, ...]
    inner: tuple[LoopVar, ...]


@dataclass(frozen=True)
class LoopKernel:
    """One kernel before codegen: ops in order, over flat loops ``x`` (outer) and ``r``.

    ``r`` is the inner, reduced loop, if any. ``name_parts`` describe the computation, most specific first;
    ``name`` is the function name. ``nodes`` are the ids of its ATen nodes; ``prefix`` starts the ids of its
    loop ops.
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
    bytes_moved: Size | None = None
    flops: Size | None = None
    name: str = ""
    initial_values: Mapping[str, str | float] = field(default_factory=dict)
    """Initial content of buffers that the kernel updates in place: a buffer name or a number."""
    matmul: MatmulLoops | None = None
    """Loops of the matmul template, if used; ``x`` and ``r`` are then rows and columns."""
    block_config: BlockConfig | None = None
    """Block configuration, or None for the default for its sizes."""
    vector_config: VectorConfig | None = None
    """Vectors of a CPU kernel, or None for the default."""
    nest: LoopNest | None = None
    """Loops of a CPU kernel, whose ops use its variables instead of ``x`` and ``r``."""
    companions: tuple[LoopKernel, ...] = ()
    """Kernels that share its launch; they have other buffers and another size of ``x``."""

    @property
    def buffers_in_order(self) -> tuple[str, ...]:
        """The buffers in the order of their first use."""
        return tuple(dict.fromkeys(op.buffer for op in self.ops if op.buffer))

    @property
    def fractions_in_order(self) -> tuple[Size, ...]:
        """The fractions that the host computes at each call, in the order of their first use."""
        return tuple(dict.fromkeys(op.value for op in self.ops if op.is_fraction))

    def args_like(self, printed: LoopKernel, args: Iterable[KernelArg]) -> tuple[KernelArg, ...]:
        """Return the arguments of an equal printed kernel, with its own buffers and fractions."""
        buffers = dict(zip(printed.buffers_in_order, self.buffers_in_order, strict=True))
        fractions: dict[object, Size] = dict(zip(printed.fractions_in_order, self.fractions_in_order, strict=True))
        return tuple(
            replace(a, buffer=buffers[a.buffer])
            if a.kind == "pointer"
            else replace(a, value=fractions[a.value])
            if a.is_fraction
            else a
            for a in args
        )

    @property
    def static_sizes(self) -> tuple[int | None, int | None]:
        """The sizes of the outer and the inner loop; None if symbolic or without a loop."""
        return static_size(self.x.size), None if self.r is None else static_size(self.r.size)

    @property
    def is_2d_pointwise(self) -> bool:
        """True if ``r`` is only the second dimension of a tile: nothing is reduced along it."""
        return self.r is not None and not any(op.name in ("reduce", "scan") for op in self.ops)
