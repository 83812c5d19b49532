"""How a kernel's flat loops are cut into blocks, and what its loop variables, bounds and sizes read like."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import sympy

from engine.ir.binary import Configuration
from engine.ir.index import Index, Mod, Size, Var, exact_quotient, product
from engine.ir.loops import WRITES, Blocking, LoopKernel, Op, R, X
from engine.kernels.online import sums_with_largest

PERSISTENT_LIMIT = 32_768
"""Longest row that one program holds whole."""
LONGEST_SCAN = 16_384
"""The same where a result runs along the row."""
LOOP_BLOCK = 8_192
SCAN_BLOCK = 2_048
"""Elements at a time along which a result runs on."""
READ_ONCE = 8_192
"""Longest row that one program holds whole where each row is read once and only a few numbers a row are written."""
READ_ONCE_BLOCK = 4_096
READ_TWICE, READ_TWICE_BLOCK = 16_384, 8_192
"""Longest row that one program holds whole where a row of results depends on all of it; longer ones are read twice, so much at a time."""
POINTWISE_BLOCK = 2_048
LEAST_BLOCKS = 1_024
"""Blocks that an elementwise kernel should have: smaller ones keep more of the device busy."""
MUCH_ARITHMETIC = range(20, 41)
"""Arithmetic per element for which longer blocks win: there is more to compute while memory is waited for, and registers suffice."""
MANY_PROGRAMS = 256
"""Programs that keep every multiprocessor of a large device busy: rows are only put together beyond that."""
TILE_SIDE = 64
"""Rows and columns of a tile where reading and writing run across each other: whole lines of memory both ways."""
LARGE_TILES = 512
"""Tiles of twice that side from which they are taken: fewer leave too much of a large device idle."""
TILE = 2_048
"""Elements that a program works on at a time when rows are short."""
LEAST_LONG = 4_096
"""Elements from which a row may be too long for a target's registers, and at a time where it is."""
LONG_COLUMN = 2_048
"""Elements of a column from which more of it is read at a time."""
LONGEST_COLUMN = 8_192
"""Elements of a column from which one program has a multiprocessor to itself."""
IN_FLIGHT = 4
"""Turns of such a column's loop whose loads are under way at once: together they fill the time until the first arrives."""
SHARED = 160_000
"""Bytes of shared memory that they may take."""
LEAST_BLOCK = 64
"""Elements below which no smaller block is tried where a target has too few resources."""


def power_of_two(n: int) -> int:
    """The least power of two that is at least n."""
    return 1 << max(n - 1, 0).bit_length()


def blocking(kernel: LoopKernel) -> Blocking:
    """Block sizes and warps for a kernel, from its sizes and from which loop runs along memory."""
    x = kernel.x.size if isinstance(kernel.x.size, int) else 1 << 20
    if kernel.r is None:
        block = POINTWISE_BLOCK if x >= POINTWISE_BLOCK * LEAST_BLOCKS else POINTWISE_BLOCK // 2
        if x >= 2 * POINTWISE_BLOCK * LEAST_BLOCKS and sum(op.cost for op in kernel.ops) in MUCH_ARITHMETIC:
            block = 2 * POINTWISE_BLOCK
        block = min(block, power_of_two(x))
        return Blocking(block, 0, False, 4 if block >= 512 else max(1, block // 128))
    if kernel.is_tiled and not _runs_along(kernel, X):
        block = min(POINTWISE_BLOCK, power_of_two(kernel.r.size)) if isinstance(kernel.r.size, int) else POINTWISE_BLOCK
        return Blocking(1, block, False, 4, is_tiled=True)
    if kernel.is_tiled:
        side = 2 * TILE_SIDE if _has_large_tiles(kernel) else TILE_SIDE
        return Blocking(side, side, False, 8, is_tiled=True)
    has_scan = any(op.name == "scan" for op in kernel.ops)
    r = kernel.r.size if isinstance(kernel.r.size, int) else None
    if lies_across(kernel):
        return _columns(kernel, x, r)
    online = sums_with_largest(kernel.ops)
    if online and (r is None or r >= READ_ONCE) and _is_read_once(kernel, online):
        return Blocking(1, READ_ONCE_BLOCK, True, 4)
    if online and r is not None and r > READ_TWICE:
        return Blocking(1, READ_TWICE_BLOCK, True, 8)
    if r is not None and power_of_two(r) <= (LONGEST_SCAN if has_scan else PERSISTENT_LIMIT):
        block = power_of_two(r)
        rows = max(1, min(TILE // block, power_of_two(x // MANY_PROGRAMS), 64)) if block < 1024 else 1
        return Blocking(rows, block, False, _warps(rows * block))
    return Blocking(1, SCAN_BLOCK, True, 8) if has_scan else Blocking(1, LOOP_BLOCK, True, 16)


def stages(block: Blocking) -> int:
    """Turns of a loop under way at once."""
    return 2 if block.is_looped else 1


def smaller(block: Blocking) -> tuple[Configuration, ...]:
    """What to try where a target has too little shared memory or too few registers: the same text in ever smaller blocks, each half the one before.

    A row that one program holds whole stays whole in that text (``in_parts`` is for another): then only warps are fewer, and with them
    the scratch that they exchange values in.
    """
    found = [] if not block.is_looped else [_configuration(block, block)]
    found += [_configuration(cut, block) for cut in _cuts(block)]
    return tuple(found)


def in_parts(block: Blocking) -> Blocking | None:
    """A long row that one program holds whole, read part by part instead; None for anything else."""
    if not block.is_row or block.is_looped or block.is_tiled or block.r_block < LEAST_LONG:
        return None
    return Blocking(1, LEAST_LONG, True, 8)


def _cuts(block: Blocking) -> Iterator[Blocking]:
    while (cut := _half(block)) is not None:
        block = cut
        yield block
    while block.num_warps > 1:
        block = replace(block, num_warps=block.num_warps // 2)
        yield block


def _half(block: Blocking) -> Blocking | None:
    """Half the elements, at least as many a warp as before; None where blocks are small, or whole rows."""
    elements = block.x_block * max(block.r_block, 1)
    if elements <= LEAST_BLOCK:
        return None
    warps = max(1, min(block.num_warps, elements // 2 // 128))
    if block.r_block and (block.is_looped or block.is_tiled) and block.r_block >= block.x_block:
        return replace(block, r_block=block.r_block // 2, num_warps=warps)
    return None if block.x_block == 1 else replace(block, x_block=block.x_block // 2, num_warps=warps)


def _configuration(cut: Blocking, planned: Blocking) -> Configuration:
    wider = planned.x_block // cut.x_block
    higher = planned.r_block // cut.r_block if cut.is_tiled and cut.r_block else 1
    if cut.r_block == 0:
        return Configuration((("BLOCK", cut.x_block),), cut.num_warps, 1, (wider, 1))
    rows = () if planned.is_row else (("ROWS", cut.x_block),)
    return Configuration((*rows, ("COLS", cut.r_block)), cut.num_warps, 1, (wider, higher))


def _has_large_tiles(kernel: LoopKernel) -> bool:
    """Whether so little of each element is held that a larger tile finds room, and there are enough of them."""
    assert kernel.r is not None
    held = sum(op.dtype.itemsize for op in kernel.ops if op.name == "load")
    numel = product((kernel.x.size, kernel.r.size))
    return held <= 4 and isinstance(numel, int) and numel >= LARGE_TILES * (2 * TILE_SIDE) ** 2


def lies_across(kernel: LoopKernel) -> bool:
    """Whether rows lie across memory, and there are enough of them to read neighbouring ones together."""
    x = kernel.x.size
    is_wide = not isinstance(x, int) or x >= 16
    has_scan = any(op.name == "scan" for op in kernel.ops)
    return is_wide and not has_scan and _runs_along(kernel, X) > _runs_along(kernel, R)


def _columns(kernel: LoopKernel, x: int, r: int | None) -> Blocking:
    """Rows that lie across memory: neighbouring outer elements are read together."""
    rows = min(64, power_of_two(x))
    if r is not None and power_of_two(r) <= 64:
        return Blocking(rows, power_of_two(r), False, 4)
    if r is None or r < LONG_COLUMN:
        return Blocking(rows, 64, True, 8)
    ahead = Blocking(rows, 128 if r < LONGEST_COLUMN else 256, True, 8, in_flight=IN_FLIGHT)
    while ahead.r_block > 64 and shared_bytes(kernel, ahead) > SHARED:
        ahead = replace(ahead, r_block=ahead.r_block // 2)
    return ahead if shared_bytes(kernel, ahead) <= SHARED else Blocking(rows, 128, True, 8)


def shared_bytes(kernel: LoopKernel, block: Blocking) -> int:
    """Bytes of shared memory that a loop's loads take while they are under way."""
    loads = {(op.buffer, op.index): op.dtype.itemsize for op in kernel.ops if op.name == "load" and R in op.space}
    return sum(loads.values()) * block.x_block * block.r_block * block.in_flight


def _is_read_once(kernel: LoopKernel, online: dict[int, Op]) -> bool:
    """Whether one run over each row is enough: it keeps a running largest value, and writes nothing along the row."""
    if any(op.name in WRITES and R in op.space for op in kernel.ops):
        return False
    return all(op.number in online or op in online.values() for op in kernel.ops if op.name == "reduce")


def _warps(elements: int) -> int:
    return min(16, max(1, elements // 512))


def _runs_along(kernel: LoopKernel, loop: str) -> int:
    """How many loads have neighbouring elements of this loop side by side in memory."""
    var = kernel.x if loop == X else kernel.r
    return sum(
        1
        for op in kernel.ops
        if op.name == "load" and op.index is not None and op.space >= {X, R} and _is_unit(op.index, var)
    )


def _is_unit(index: Index, var: Var | None) -> bool:
    for atom, coefficient in index.terms.items():
        if coefficient == 1 and (
            atom == var or (isinstance(atom, Mod) and var is not None and atom.of == Index({var: 1}))
        ):
            return True
    return False


def is_divisible(size: Size, block: int) -> bool:
    """Whether blocks cover a size exactly, so that no bounds are checked."""
    return exact_quotient(size, block) is not None


def blocks(size: Size, block: int) -> Size:
    """How many blocks cover a size."""
    if isinstance(size, int):
        return -(-size // block)
    whole = exact_quotient(size, block)
    return whole if whole is not None else sympy.ceiling(size / block)


def is_linear(size: sympy.Expr) -> bool:
    """Whether a symbolic size reads well inside a kernel: sums and products of numbers and symbols."""
    if size.is_Symbol or size.is_Integer:
        return True
    return bool(size.is_Add or size.is_Mul) and all(isinstance(a, sympy.Expr) and is_linear(a) for a in size.args)
