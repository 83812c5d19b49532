"""How a kernel's flat loops are cut into blocks, and what its loop variables, bounds and sizes read like."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import sympy

from engine.ir.kernels.compile_triton import KernelConfig
from engine.ir.loop_ir.index_expr import IndexExpr, LoopVar, Mod, Size, exact_quotient, product
from engine.ir.loop_ir.loop_kernel import BlockConfig, LoopKernel
from engine.ir.loop_ir.ops import WRITE_OPS, LoopIROp, R, X
from engine.kernels.online_reductions import match_online_softmax

PERSISTENT_LIMIT = 32_768
"""Longest row that one program holds whole."""
MAX_PERSISTENT_SCAN = 16_384
"""The same where a result runs along the row."""
LOOP_BLOCK = 8_192
SCAN_BLOCK = 2_048
"""Elements at a time along which a result runs on."""
MAX_PERSISTENT_ONE_PASS = 8_192
"""Longest row that one program holds whole where each row is read once and only a few numbers a row are written."""
ONE_PASS_BLOCK = 4_096
MAX_PERSISTENT_TWO_PASS, TWO_PASS_BLOCK = 16_384, 8_192
"""Longest row that one program holds whole where a row of results depends on all of it; longer ones are read twice, so much at a time."""
POINTWISE_BLOCK = 2_048
MIN_POINTWISE_PROGRAMS = 1_024
"""Blocks that an elementwise kernel should have: smaller ones keep more of the device busy."""
LONG_BLOCK_COSTS = range(20, 41)
"""Arithmetic per element for which longer blocks win: there is more to compute while memory is waited for, and registers suffice."""
MIN_BUSY_PROGRAMS = 256
"""Programs that keep every multiprocessor of a large device busy: rows are only put together beyond that."""
TILE_SIDE = 64
"""Rows and columns of a tile where reading and writing run across each other: whole lines of memory both ways."""
MIN_LARGE_TILES = 512
"""Tiles of twice that side from which they are taken: fewer leave too much of a large device idle."""
SHORT_ROWS_ELEMENTS = 2_048
"""Elements that a program works on at a time when rows are short."""
LOOPED_VARIANT_BLOCK = 4_096
"""Elements from which a row may be too long for a target's registers, and at a time where it is."""
LONG_COLUMN_ELEMENTS = 2_048
"""Elements of a column from which more of it is read at a time."""
VERY_LONG_COLUMN_ELEMENTS = 8_192
"""Elements of a column from which one program has a multiprocessor to itself."""
COLUMN_LOAD_STAGES = 4
"""Turns of such a column's loop whose loads are under way at once: together they fill the time until the first arrives."""
MAX_LOAD_SHARED_BYTES = 160_000
"""Bytes of shared memory that they may take."""
MIN_BLOCK = 64
"""Elements below which no smaller block is tried where a target has too few resources."""


def power_of_two(n: int) -> int:
    """The least power of two that is at least n."""
    return 1 << max(n - 1, 0).bit_length()


def default_blocking(kernel: LoopKernel) -> BlockConfig:
    """Block sizes and warps for a kernel, from its sizes and from which loop runs along memory."""
    x = kernel.x.size if isinstance(kernel.x.size, int) else 1 << 20
    if kernel.r is None:
        block = POINTWISE_BLOCK if x >= POINTWISE_BLOCK * MIN_POINTWISE_PROGRAMS else POINTWISE_BLOCK // 2
        if x >= 2 * POINTWISE_BLOCK * MIN_POINTWISE_PROGRAMS and sum(op.cost for op in kernel.ops) in LONG_BLOCK_COSTS:
            block = 2 * POINTWISE_BLOCK
        block = min(block, power_of_two(x))
        return BlockConfig(block, 0, False, 4 if block >= 512 else max(1, block // 128))
    if kernel.is_2d_pointwise and not _count_contiguous_loads(kernel, X):
        block = min(POINTWISE_BLOCK, power_of_two(kernel.r.size)) if isinstance(kernel.r.size, int) else POINTWISE_BLOCK
        return BlockConfig(1, block, False, 4, has_2d_grid=True)
    if kernel.is_2d_pointwise:
        side = 2 * TILE_SIDE if _fits_large_tiles(kernel) else TILE_SIDE
        return BlockConfig(side, side, False, 8, has_2d_grid=True)
    has_scan = any(op.name == "scan" for op in kernel.ops)
    r = kernel.r.size if isinstance(kernel.r.size, int) else None
    if is_outer_reduction(kernel):
        return _outer_reduction_blocking(kernel, x, r)
    online = match_online_softmax(kernel.ops)
    if online and (r is None or r >= MAX_PERSISTENT_ONE_PASS) and _needs_one_pass(kernel, online):
        return BlockConfig(1, ONE_PASS_BLOCK, True, 4)
    if online and r is not None and r > MAX_PERSISTENT_TWO_PASS:
        return BlockConfig(1, TWO_PASS_BLOCK, True, 8)
    if r is not None and power_of_two(r) <= (MAX_PERSISTENT_SCAN if has_scan else PERSISTENT_LIMIT):
        block = power_of_two(r)
        rows = (
            max(1, min(SHORT_ROWS_ELEMENTS // block, power_of_two(x // MIN_BUSY_PROGRAMS), 64)) if block < 1024 else 1
        )
        return BlockConfig(rows, block, False, _num_warps(rows * block))
    return BlockConfig(1, SCAN_BLOCK, True, 8) if has_scan else BlockConfig(1, LOOP_BLOCK, True, 16)


def loop_stages(block: BlockConfig) -> int:
    """Turns of a loop under way at once."""
    return 2 if block.is_looped else 1


def smaller_configurations(block: BlockConfig) -> tuple[KernelConfig, ...]:
    """What to try where a target has too little shared memory or too few registers: the same text in ever smaller blocks, each half the one before.

    A row that one program holds whole stays whole in that text (``looped_variant`` is for another): then only warps are fewer, and with them
    the scratch that they exchange values in.
    """
    found = [] if not block.is_looped else [_as_configuration(block, block)]
    found += [_as_configuration(cut, block) for cut in _shrinking_blockings(block)]
    return tuple(found)


def looped_variant(block: BlockConfig) -> BlockConfig | None:
    """A long row that one program holds whole, read part by part instead; None for anything else."""
    if not block.is_one_row_per_program or block.is_looped or block.has_2d_grid or block.r_block < LOOPED_VARIANT_BLOCK:
        return None
    return BlockConfig(1, LOOPED_VARIANT_BLOCK, True, 8)


def _shrinking_blockings(block: BlockConfig) -> Iterator[BlockConfig]:
    while (cut := _halved(block)) is not None:
        block = cut
        yield block
    while block.num_warps > 1:
        block = replace(block, num_warps=block.num_warps // 2)
        yield block


def _halved(block: BlockConfig) -> BlockConfig | None:
    """Half the elements, at least as many a warp as before; None where blocks are small, or whole rows."""
    elements = block.x_block * max(block.r_block, 1)
    if elements <= MIN_BLOCK:
        return None
    warps = max(1, min(block.num_warps, elements // 2 // 128))
    if block.r_block and (block.is_looped or block.has_2d_grid) and block.r_block >= block.x_block:
        return replace(block, r_block=block.r_block // 2, num_warps=warps)
    return None if block.x_block == 1 else replace(block, x_block=block.x_block // 2, num_warps=warps)


def _as_configuration(cut: BlockConfig, planned: BlockConfig) -> KernelConfig:
    wider = planned.x_block // cut.x_block
    higher = planned.r_block // cut.r_block if cut.has_2d_grid and cut.r_block else 1
    if cut.r_block == 0:
        return KernelConfig((("BLOCK", cut.x_block),), cut.num_warps, 1, (wider, 1))
    rows = () if planned.is_one_row_per_program else (("ROWS", cut.x_block),)
    return KernelConfig((*rows, ("COLS", cut.r_block)), cut.num_warps, 1, (wider, higher))


def _fits_large_tiles(kernel: LoopKernel) -> bool:
    """Whether so little of each element is held that a larger tile finds room, and there are enough of them."""
    assert kernel.r is not None
    held = sum(op.dtype.itemsize for op in kernel.ops if op.name == "load")
    numel = product((kernel.x.size, kernel.r.size))
    return held <= 4 and isinstance(numel, int) and numel >= MIN_LARGE_TILES * (2 * TILE_SIDE) ** 2


def is_outer_reduction(kernel: LoopKernel) -> bool:
    """Whether rows lie across memory, and there are enough of them to read neighbouring ones together."""
    x = kernel.x.size
    is_wide = not isinstance(x, int) or x >= 16
    has_scan = any(op.name == "scan" for op in kernel.ops)
    return is_wide and not has_scan and _count_contiguous_loads(kernel, X) > _count_contiguous_loads(kernel, R)


def _outer_reduction_blocking(kernel: LoopKernel, x: int, r: int | None) -> BlockConfig:
    """Rows that lie across memory: neighbouring outer elements are read together."""
    rows = min(64, power_of_two(x))
    if r is not None and power_of_two(r) <= 64:
        return BlockConfig(rows, power_of_two(r), False, 4)
    if r is None or r < LONG_COLUMN_ELEMENTS:
        return BlockConfig(rows, 64, True, 8)
    ahead = BlockConfig(rows, 128 if r < VERY_LONG_COLUMN_ELEMENTS else 256, True, 8, prefetch_depth=COLUMN_LOAD_STAGES)
    while ahead.r_block > 64 and load_shared_bytes(kernel, ahead) > MAX_LOAD_SHARED_BYTES:
        ahead = replace(ahead, r_block=ahead.r_block // 2)
    return ahead if load_shared_bytes(kernel, ahead) <= MAX_LOAD_SHARED_BYTES else BlockConfig(rows, 128, True, 8)


def load_shared_bytes(kernel: LoopKernel, block: BlockConfig) -> int:
    """Bytes of shared memory that a loop's loads take while they are under way."""
    loads = {(op.buffer, op.index): op.dtype.itemsize for op in kernel.ops if op.name == "load" and R in op.loops}
    return sum(loads.values()) * block.x_block * block.r_block * block.prefetch_depth


def _needs_one_pass(kernel: LoopKernel, online: dict[int, LoopIROp]) -> bool:
    """Whether one run over each row is enough: it keeps a running largest value, and writes nothing along the row."""
    if any(op.name in WRITE_OPS and R in op.loops for op in kernel.ops):
        return False
    return all(op.number in online or op in online.values() for op in kernel.ops if op.name == "reduce")


def _num_warps(elements: int) -> int:
    return min(16, max(1, elements // 512))


def _count_contiguous_loads(kernel: LoopKernel, loop: str) -> int:
    """How many loads have neighbouring elements of this loop side by side in memory."""
    var = kernel.x if loop == X else kernel.r
    return sum(
        1
        for op in kernel.ops
        if op.name == "load" and op.index is not None and op.loops >= {X, R} and _has_unit_stride(op.index, var)
    )


def _has_unit_stride(index: IndexExpr, var: LoopVar | None) -> bool:
    for atom, coefficient in index.terms.items():
        if coefficient == 1 and (
            atom == var or (isinstance(atom, Mod) and var is not None and atom.dividend == IndexExpr({var: 1}))
        ):
            return True
    return False


def is_block_multiple(size: Size, block: int) -> bool:
    """Whether blocks cover a size exactly, so that no bounds are checked."""
    return exact_quotient(size, block) is not None


def block_count(size: Size, block: int) -> Size:
    """How many blocks cover a size."""
    if isinstance(size, int):
        return -(-size // block)
    whole = exact_quotient(size, block)
    return whole if whole is not None else sympy.ceiling(size / block)


def is_printable_size(size: sympy.Expr) -> bool:
    """Whether a symbolic size reads well inside a kernel: sums and products of numbers and symbols."""
    if size.is_Symbol or size.is_Integer:
        return True
    return bool(size.is_Add or size.is_Mul) and all(
        isinstance(a, sympy.Expr) and is_printable_size(a) for a in size.args
    )
