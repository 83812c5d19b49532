"""Other ways to cut a kernel's loops than the usual one, the likeliest first: a rough model of time keeps out what need not be measured."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator

from engine.ir.loops import WRITES, Blocking, LoopKernel, Op, R, X
from engine.kernels.indexing import (
    LONGEST_SCAN,
    PERSISTENT_LIMIT,
    SHARED,
    blocking,
    lies_across,
    power_of_two,
    shared_bytes,
)
from engine.kernels.resources import FACTS

MOST = 7
"""Other ways that are measured."""
MOST_ALIKE = 2
"""How many of them have the same blocks, and other warps, or more or less under way."""
PROCESSORS = 132
"""Multiprocessors of the card that the model has in mind."""
CARD = FACTS["cuda:90"]
BANDWIDTH, RATE = 4.2e12, 3e13
"""Bytes, and operations of plain arithmetic, a second."""
UNDER_WAY = 36_000
"""Bytes that each multiprocessor must have asked for, so that memory never waits for it."""
LINE = 128
"""Bytes that memory gives at once: shorter runs of neighbours waste some of them."""
ENOUGH_WARPS = 16
"""Warps on a multiprocessor among which it always finds one that can go on."""
STARTED = 6e-7
"""Seconds until a program's first element is there."""
AGAIN = 0.3
"""What reading a row again costs, which is still in the card's cache, in units of reading it once."""
MANY = 1 << 20
"""What a size that is a symbol is taken for."""
FEWEST_ELEMENTS, MOST_ELEMENTS = 2, 128
"""Elements of a block for each thread."""


def cuts(kernel: LoopKernel) -> tuple[Blocking, ...]:
    """The usual way, then at most ``MOST`` others."""
    usual = blocking(kernel)
    others = {c: None for c in _family(kernel, usual) if c != usual and _fits(kernel, c)}
    found: list[Blocking] = []
    for cut in sorted(others, key=lambda c: seconds(kernel, c)):
        if sum((c.x_block, c.r_block) == (cut.x_block, cut.r_block) for c in found) < MOST_ALIKE:
            found.append(cut)
    return (usual, *found[:MOST])


def seconds(kernel: LoopKernel, block: Blocking) -> float:
    """What the model gives: memory as busy as what is asked for at once keeps it, and arithmetic beside it."""
    threads, elements = 32 * block.num_warps, block.x_block * max(block.r_block, 1)
    x, r = _number(kernel.x.size), 1 if kernel.r is None else _number(kernel.r.size)
    whole = [op for op in kernel.ops if op.name == "load" and (kernel.r is None or R in op.space)]
    read = sum(op.dtype.itemsize for op in whole)
    written = sum(
        op.dtype.itemsize for op in kernel.ops if op.name in WRITES and op.space >= ({X, R} if r > 1 else {X})
    )
    registers = 24 + math.ceil(elements / threads) * max(1, len(whole) + _kept(kernel, block))
    held = min(
        CARD.warps // block.num_warps,
        CARD.registers // (min(registers, 255) * threads),
        CARD.shared // (shared_bytes(kernel, block) + CARD.shared_reserved),
        CARD.blocks,
    )
    programs = math.ceil(x / block.x_block) * (math.ceil(r / block.r_block) if block.is_tiled else 1)
    held = max(1, min(held, math.ceil(programs / PROCESSORS)))
    asked = held * elements * max(read, 1) * max(block.in_flight - 1, 1)
    waves = programs / (held * PROCESSORS)
    busy = waves / math.ceil(waves) if waves < 4 else 1.0
    moved = x * r * (read * (1 + AGAIN * _readings(kernel, block)) + written)
    whole_lines: float = (
        min(1.0, _neighbours(kernel, block) * max((op.dtype.itemsize for op in whole), default=LINE) / LINE) ** 0.5
    )
    arithmetic = x * r * sum(op.cost for op in kernel.ops) / (RATE * min(1.0, held * block.num_warps / ENOUGH_WARPS))
    lost = (1.0 if registers <= 255 else registers / 128) / whole_lines
    return lost * (
        max(moved / (BANDWIDTH * min(1.0, asked / UNDER_WAY)), arithmetic) / busy + math.ceil(waves) * STARTED
    )


def _family(kernel: LoopKernel, usual: Blocking) -> Iterator[Blocking]:
    """All ways of the usual one's kind."""
    if kernel.r is None:
        for block, warps in itertools.product((256, 512, 1024, 2048, 4096, 8192), (2, 4, 8)):
            yield Blocking(block, 0, False, warps)
        return
    if usual.is_tiled:
        sides = (16, 32, 64, 128)
        shapes = [(1, n) for n in (512, 1024, 2048, 4096)] if usual.x_block == 1 else itertools.product(sides, sides)
        for (rows, cols), warps in itertools.product(shapes, (4, 8)):
            yield Blocking(rows, cols, False, warps, is_tiled=True)
        return
    r = kernel.r.size if isinstance(kernel.r.size, int) else None
    if lies_across(kernel):
        for rows, cols, warps, ahead in itertools.product(
            (16, 32, 64, 128), (64, 128, 256, 512), (4, 8, 16), (0, 3, 4)
        ):
            yield Blocking(rows, cols, True, warps, in_flight=ahead)
        if r is not None and r <= 256:
            for rows, warps in itertools.product((16, 32, 64, 128), (4, 8)):
                yield Blocking(rows, power_of_two(r), False, warps)
        return
    yield from _rows(kernel, r)


def _rows(kernel: LoopKernel, r: int | None) -> Iterator[Blocking]:
    has_scan = any(op.name == "scan" for op in kernel.ops)
    if r is not None and power_of_two(r) <= (LONGEST_SCAN if has_scan else PERSISTENT_LIMIT):
        for rows, warps in itertools.product((1, 2, 4, 8, 16, 32), (1, 2, 4, 8, 16, 32)):
            if rows == 1 or power_of_two(r) <= 1024:
                yield Blocking(rows, power_of_two(r), False, warps)
    if r is None or r > 2048:
        for cols, warps, ahead in itertools.product((1024, 2048, 4096, 8192), (4, 8, 16), (0, 3, 4)):
            yield Blocking(1, cols, True, warps, in_flight=ahead)


def _fits(kernel: LoopKernel, block: Blocking) -> bool:
    elements = block.x_block * max(block.r_block, 1) / (32 * block.num_warps)
    longest = power_of_two(_number(kernel.x.size))
    return (
        FEWEST_ELEMENTS <= elements <= MOST_ELEMENTS
        and shared_bytes(kernel, block) <= SHARED
        and (block.x_block == 1 or block.x_block <= longest)
    )


def _neighbours(kernel: LoopKernel, block: Blocking) -> int:
    """How many elements side by side a block reads together."""
    if kernel.r is None:
        return block.x_block
    if block.is_tiled and block.x_block > 1:
        return min(block.x_block, block.r_block)
    return block.x_block if lies_across(kernel) else block.x_block * block.r_block


def _kept(kernel: LoopKernel, block: Blocking) -> int:
    """Running results for each element of a block."""
    return sum(op.name == "reduce" for op in kernel.ops) if block.is_looped else 0


def _readings(kernel: LoopKernel, block: Blocking) -> int:
    """How many times a row is read again: once for each result of it that something along the row needs."""
    if not block.is_looped:
        return 0
    depth: dict[int, int] = {}
    for op in kernel.ops:
        depth[op.number] = max((depth[a.number] for a in op.args), default=0) + (op.name == "reduce")
    return max((depth[op.number] for op in kernel.ops if _needs_row(op)), default=0)


def _needs_row(op: Op) -> bool:
    return R in op.space and op.name in WRITES


def _number(size: object) -> int:
    return size if isinstance(size, int) else MANY
