"""Default block sizes and warps of a loop kernel; bounds and sizes of its loops."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace

import sympy

from engine.ir.kernels.compile_triton import KernelConfig
from engine.ir.loop_ir.index_expr import Atom, IndexExpr, LoopVar, Size, exact_quotient, static_product
from engine.ir.loop_ir.loop_kernel import BlockConfig, LoopKernel
from engine.ir.loop_ir.memory_lines import digits_across, line_digits
from engine.ir.loop_ir.ops import WRITE_OPS, LoopIROp, R, X
from engine.ir.static_sizes import static_size
from engine.kernels.online_reductions import match_online_softmax

PERSISTENT_LIMIT = 32_768
"""Longest persistent row: one program holds it whole."""
MAX_PERSISTENT_SCAN = 16_384
"""Longest persistent row with a scan."""
LOOP_BLOCK = 8_192
MIN_SCAN_COLUMNS, MAX_SCAN_COLUMNS, SCAN_COLUMNS_ELEMENTS = 8, 32, 16_384
"""Fewest and most adjacent columns that one program scans, and its most elements."""
MAX_ADJACENT_ROWS, ADJACENT_ROWS_ELEMENTS = 16, 8_192
"""Most rows of a program that reads a tensor across its rows, and its most elements.

The rows share memory lines of the tensor, as of a convolution's contiguous result that is read channels last.
"""
SCAN_BLOCK = 2_048
"""Elements per iteration of a looped scan."""
MAX_PERSISTENT_ONE_PASS = 8_192
"""Longest persistent row that is read once and yields only a few numbers."""
ONE_PASS_BLOCK = 4_096
MAX_PERSISTENT_TWO_PASS, TWO_PASS_BLOCK = 16_384, 8_192
"""Longest persistent row that is needed twice, and the block size of longer rows.

It applies if a row of results depends on the whole row.
"""
POINTWISE_BLOCK = 2_048
MIN_POINTWISE_PROGRAMS = 1_024
"""Programs that a pointwise kernel should have; smaller blocks keep the device busier."""
LONG_BLOCK_COSTS = range(20, 41)
"""Costs per element for which longer blocks are faster.

There is more arithmetic to hide the memory latency, and registers suffice.
"""
MIN_BUSY_PROGRAMS = 256
"""Programs that keep a large device busy; only beyond that, a program gets several rows."""
TILE_SIDE = 64
"""Side of a transpose tile, so that reads and writes use whole memory lines."""
MIN_LARGE_TILES = 512
"""Fewest tiles of twice that side; fewer would leave too much of a large device idle."""
SHORT_ROWS_ELEMENTS = 2_048
"""Elements that a program processes at a time if rows are short."""
LOOPED_VARIANT_BLOCK = 4_096
"""Row length from which a looped variant is printed, and its block size."""
LONG_COLUMN_ELEMENTS = 2_048
"""Column length from which blocks are longer."""
VERY_LONG_COLUMN_ELEMENTS = 8_192
"""Column length from which a program has a multiprocessor to itself."""
MIN_COLUMNS, MAX_COLUMNS, MIN_COLUMN_PROGRAMS = 16, 64, 64
"""Fewest and most long columns of a program, and programs from which on it has more."""
MIN_SHORT_COLUMNS, MAX_WHOLE_COLUMN = 32, 128
"""Fewest short columns that a program reduces, and the longest ones that it loads at once."""
COLUMN_LOAD_STAGES, SHORT_COLUMN_LOAD_STAGES = 4, 3
"""Iterations whose loads are in flight, for long and for shorter columns: hides latency."""
MAX_SHORT_LOAD_SHARED_BYTES = 100_000
"""Most bytes of loads in flight, for shorter columns: a multiprocessor has two programs."""
MAX_LOAD_SHARED_BYTES = 160_000
"""Most bytes of shared memory for loads in flight."""
MIN_SHARED_QUOTIENT_ROWS = 16
"""Fewest rows of a block whose size is chosen so that the rows share a quotient."""
MIN_BLOCK = 64
"""Fewest elements of a block that are tried if a target lacks resources."""


def power_of_two(n: int) -> int:
    """Return the least power of two that is at least n."""
    return 1 << max(n - 1, 0).bit_length()


def default_blocking(kernel: LoopKernel) -> BlockConfig:
    """Return block sizes and warps of a kernel, by its sizes and its contiguous loop."""
    x, r = kernel.static_sizes
    x = 1 << 20 if x is None else x
    if kernel.r is None:
        block = POINTWISE_BLOCK if x >= POINTWISE_BLOCK * MIN_POINTWISE_PROGRAMS else POINTWISE_BLOCK // 2
        if x >= 2 * POINTWISE_BLOCK * MIN_POINTWISE_PROGRAMS and sum(op.cost for op in kernel.ops) in LONG_BLOCK_COSTS:
            block = 2 * POINTWISE_BLOCK
        block = min(block, power_of_two(x))
        return BlockConfig(block, 0, False, 4 if block >= 512 else max(1, block // 128))
    if kernel.is_2d_pointwise and not _goes_across_rows(kernel):
        block = POINTWISE_BLOCK if r is None else min(POINTWISE_BLOCK, power_of_two(r))
        return BlockConfig(1, block, False, 4, has_2d_grid=True)
    if kernel.is_2d_pointwise:
        side = 2 * TILE_SIDE if _fits_large_tiles(kernel) else TILE_SIDE
        return BlockConfig(side, side if r is None else min(side, power_of_two(r)), False, 8, has_2d_grid=True)
    has_scan = any(op.name == "scan" for op in kernel.ops)
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
        goal = power_of_two(x // MIN_BUSY_PROGRAMS)
        if has_scan and _reads_columns(kernel):
            columns_goal = min(max(MIN_SCAN_COLUMNS, goal), MAX_SCAN_COLUMNS)
            rows = max(rows, min(SCAN_COLUMNS_ELEMENTS // block, power_of_two(x), columns_goal))
        adjacent = min(ADJACENT_ROWS_ELEMENTS // block, goal, MAX_ADJACENT_ROWS)
        if adjacent > rows and _contiguous_loads(kernel, X):
            return BlockConfig(adjacent, block, False, min(8, _num_warps(adjacent * block)))
        return BlockConfig(rows, block, False, _num_warps(rows * block))
    return BlockConfig(1, SCAN_BLOCK, True, 8) if has_scan else BlockConfig(1, LOOP_BLOCK, True, 16)


def loop_stages(block: BlockConfig) -> int:
    """Return the number of pipeline stages of a kernel's loop."""
    return 2 if block.is_looped else 1


def smaller_configurations(block: BlockConfig) -> tuple[KernelConfig, ...]:
    """Return smaller configurations, for targets with too little shared memory or registers.

    The text is the same; each block is half the one before. A persistent row remains whole (``looped_variant`` needs
    another text). Then only the number of warps decreases, and with it their shared scratch memory.
    """
    configurations = [] if not block.is_looped else [_as_configuration(block, block)]
    configurations += [_as_configuration(cut, block) for cut in _shrinking_blockings(block)]
    return tuple(configurations)


def looped_variant(block: BlockConfig) -> BlockConfig | None:
    """Return the looped variant of a long persistent row; None for other blocks."""
    if not block.is_one_row_per_program or block.is_looped or block.has_2d_grid or block.r_block < LOOPED_VARIANT_BLOCK:
        return None
    return BlockConfig(1, LOOPED_VARIANT_BLOCK, True, 8)


def _shrinking_blockings(block: BlockConfig) -> Iterator[BlockConfig]:
    while (cut := _halve_block(block)) is not None:
        block = cut
        yield block
    while block.num_warps > 1:
        block = replace(block, num_warps=block.num_warps // 2)
        yield block


def _halve_block(block: BlockConfig) -> BlockConfig | None:
    """Halve the elements, with no fewer per warp; None for small blocks or whole rows."""
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


def _goes_across_rows(kernel: LoopKernel) -> bool:
    """Return True if neighbors in memory are in several rows."""
    loops = tuple(v for v in (kernel.x, kernel.r) if v is not None)
    indices = [op.index for op in kernel.ops if op.index is not None and op.loops >= {X, R}]
    return any(digits_across(line_digits(index, loops), loops[1:]) for index in indices)


def _fits_large_tiles(kernel: LoopKernel) -> bool:
    """Return True if a larger tile fits in the registers, and there are enough such tiles."""
    assert kernel.r is not None
    held = sum(op.dtype.itemsize for op in kernel.ops if op.name == "load")
    numel = static_product((kernel.x.size, kernel.r.size))
    return held <= 4 and numel is not None and numel >= MIN_LARGE_TILES * (2 * TILE_SIDE) ** 2


def is_outer_reduction(kernel: LoopKernel) -> bool:
    """Return True if rows are strided in memory and enough adjacent rows can share a read."""
    x, _ = kernel.static_sizes
    is_wide = x is None or x >= 16
    has_scan = any(op.name == "scan" for op in kernel.ops)
    return is_wide and not has_scan and _reads_columns(kernel)


def _reads_columns(kernel: LoopKernel) -> bool:
    """Return True if more elements are adjacent in memory across rows than along a row."""
    return _contiguous_elements_read(kernel, X) > _contiguous_elements_read(kernel, R)


def _outer_reduction_blocking(kernel: LoopKernel, x: int, r: int | None) -> BlockConfig:
    """Return the blocks of an outer reduction: adjacent outer elements are read together."""
    if r is None:
        return BlockConfig(_column_count(kernel, x, MAX_COLUMNS, MAX_COLUMNS), 64, True, 8)
    if (whole := power_of_two(r)) <= MAX_WHOLE_COLUMN:
        most = MAX_COLUMNS if whole < MAX_WHOLE_COLUMN else MIN_SHORT_COLUMNS
        return BlockConfig(_column_count(kernel, x, most, MIN_SHORT_COLUMNS), whole, False, 4)
    if r < LONG_COLUMN_ELEMENTS:
        rows = _column_count(kernel, x, MAX_COLUMNS, MAX_COLUMNS)
        ahead = BlockConfig(rows, 64, True, 4, prefetch_depth=SHORT_COLUMN_LOAD_STAGES)
        is_small = load_shared_bytes(kernel, ahead) <= MAX_SHORT_LOAD_SHARED_BYTES
        return ahead if is_small and _loads_whole_lines(kernel) else BlockConfig(rows, 64, True, 8)
    rows = _column_count(kernel, x, MAX_COLUMNS, MIN_COLUMNS)
    ahead = BlockConfig(rows, 128 if r < VERY_LONG_COLUMN_ELEMENTS else 256, True, 8, prefetch_depth=COLUMN_LOAD_STAGES)
    while ahead.r_block > 64 and load_shared_bytes(kernel, ahead) > MAX_LOAD_SHARED_BYTES:
        ahead = replace(ahead, r_block=ahead.r_block // 2)
    return ahead if load_shared_bytes(kernel, ahead) <= MAX_LOAD_SHARED_BYTES else BlockConfig(rows, 128, True, 8)


def _column_count(kernel: LoopKernel, x: int, most: int, fewest: int) -> int:
    """Return how many adjacent columns a program reduces; fewer if there are few columns."""
    columns = min(most, power_of_two(x))
    while columns > fewest and x < MIN_COLUMN_PROGRAMS * columns:
        columns //= 2
    return _rows_within(math.gcd(*row_divisors(kernel)), columns)


def _rows_within(divisor: int, rows: int) -> int:
    """Return rows in which ``row // divisor`` is constant; ``rows`` if they are few."""
    shorter = rows
    while shorter >= MIN_SHARED_QUOTIENT_ROWS and divisor % shorter:
        shorter //= 2
    return shorter if divisor and shorter >= MIN_SHARED_QUOTIENT_ROWS else rows


def row_divisors(kernel: LoopKernel) -> frozenset[int]:
    """Return ``d`` of each ``row // d`` in a quotient or remainder along both loops.

    Empty if such an index uses the row in another way, or if a mask may vary with both.
    """
    if kernel.r is None or any(op.mask is not None for op in kernel.ops):
        return frozenset()
    indices = [op.index for op in kernel.ops if op.index is not None]
    divisors = {d for index in indices for atom in index.terms for d in _row_divisors(atom, kernel.x, kernel.r)}
    return frozenset() if 0 in divisors else frozenset(divisors)


def _row_divisors(atom: Atom, x: LoopVar, r: LoopVar) -> Iterator[int]:
    """Yield the divisors in one quotient or remainder; 0 for another use of the row."""
    division = atom.as_division()
    if division is None or not division.variables() >= {x, r}:
        return
    for part in division.dividend.terms:
        if part.variables() >= {x, r}:
            yield from _row_divisors(part, x, r)
        elif x in part.variables():
            divided = None if part.as_remainder() is not None else part.divided_variable()
            yield 0 if divided is None else static_size(divided[1]) or 0


def load_shared_bytes(kernel: LoopKernel, block: BlockConfig) -> int:
    """Return the bytes of shared memory that the loop's loads in flight take."""
    loads = {(op.buffer, op.index): op.dtype.itemsize for op in kernel.ops if op.name == "load" and R in op.loops}
    return sum(loads.values()) * block.x_block * block.r_block * block.prefetch_depth


def _loads_whole_lines(kernel: LoopKernel) -> bool:
    """Return True if each load in the loop is of many columns.

    Single numbers are slow to prefetch.
    """
    return all(X in op.loops for op in kernel.ops if op.name == "load" and R in op.loops)


def _needs_one_pass(kernel: LoopKernel, online: dict[int, LoopIROp]) -> bool:
    """Return True if one pass over each row suffices.

    All reductions are online, and nothing is written along the row.
    """
    if any(op.name in WRITE_OPS and R in op.loops for op in kernel.ops):
        return False
    return all(op.number in online or op in online.values() for op in kernel.ops if op.name == "reduce")


def _num_warps(elements: int) -> int:
    return min(16, max(1, elements // 512))


def _contiguous_loads(kernel: LoopKernel, loop: str) -> list[LoopIROp]:
    var = kernel.x if loop == X else kernel.r
    return [
        op
        for op in kernel.ops
        if op.name == "load" and op.index is not None and op.loops >= {X, R} and _has_unit_stride(op.index, var)
    ]


def _contiguous_elements_read(kernel: LoopKernel, loop: str) -> int:
    """Return the elements read by loads that are contiguous along this loop.

    A tensor smaller than the loops is read again from the cache, so it counts with its own elements. Tensors of
    symbolic size count as one element.
    """
    loops = [n for n in kernel.static_sizes if n is not None]
    most = math.prod(loops) if len(loops) == 2 else 1
    own = [(op, static_product(kernel.buffers[op.buffer].shape)) for op in _contiguous_loads(kernel, loop)]
    return sum(min(most, 1 if numel is None else numel) for _, numel in own)


def _has_unit_stride(index: IndexExpr, var: LoopVar | None) -> bool:
    if var is None:
        return False
    units = [atom for atom, coefficient in index.terms.items() if coefficient == 1]
    remainders = [r for r in (atom.as_remainder() for atom in units) if r is not None]
    return var in units or any(r.dividend.single_atom() == var for r in remainders)


def is_block_multiple(size: Size, block: int) -> bool:
    """Return True if blocks cover a size exactly, so that bounds need no check."""
    return exact_quotient(size, block) is not None


def block_count(size: Size, block: int) -> Size:
    """Return the number of blocks that cover a size."""
    static, whole = static_size(size), exact_quotient(size, block)
    if static is not None:
        return -(-static // block)
    return whole if whole is not None else sympy.ceiling(size / block)


def is_printable_size(size: sympy.Basic) -> bool:
    """Return True if a symbolic size is readable in a kernel.

    It may contain sums and products of numbers and symbols.
    """
    if size.is_Symbol or size.is_Integer:
        return True
    return bool(size.is_Add or size.is_Mul) and all(map(is_printable_size, size.args))
