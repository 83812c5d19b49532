"""Candidate block configurations of a loop kernel, ranked by a rough cost model."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator

from engine.ir.loop_ir.loop_kernel import BlockConfig, LoopKernel
from engine.ir.loop_ir.ops import WRITE_OPS, LoopIROp, R, X
from engine.ir.static_sizes import static_size
from engine.kernels.resources import DEVICE_LIMITS
from engine.kernels.triton.block_heuristics import (
    MAX_LOAD_SHARED_BYTES,
    MAX_PERSISTENT_SCAN,
    PERSISTENT_LIMIT,
    default_blocking,
    is_outer_reduction,
    load_shared_bytes,
    power_of_two,
)

MAX_CANDIDATES = 7
"""Most candidates that are measured, besides the default."""
MAX_CANDIDATES_PER_BLOCK = 2
"""Most candidates with equal blocks, which differ in warps or load stages."""
MULTIPROCESSORS = 132
"""Multiprocessors of the device that the cost model assumes."""
MODELED_DEVICE = DEVICE_LIMITS["cuda:90"]
BYTES_PER_SECOND, FLOPS_PER_SECOND = 4.2e12, 3e13
"""Bytes per second, and plain arithmetic operations per second."""
BYTES_IN_FLIGHT = 36_000
"""Bytes in flight per multiprocessor that keep the memory busy."""
MEMORY_LINE_BYTES = 128
"""Bytes of one memory access; shorter contiguous runs waste a part of it."""
BUSY_WARPS = 16
"""Warps on a multiprocessor that suffice to hide latency."""
PROGRAM_START_SECONDS = 6e-7
"""Seconds until a program's first element is loaded."""
REREAD_COST = 0.3
"""Cost of reading a row again from the cache, relative to its first read."""
ASSUMED_SIZE = 1 << 20
"""Assumed value of a symbolic size."""
MIN_ELEMENTS_PER_THREAD, MAX_ELEMENTS_PER_THREAD = 2, 128
"""Fewest and most elements of a block per thread."""


def candidate_blockings(kernel: LoopKernel) -> tuple[BlockConfig, ...]:
    """Return the default configuration, then at most ``MAX_CANDIDATES`` others."""
    usual = default_blocking(kernel)
    others = {c: None for c in _all_candidates(kernel, usual) if c != usual and fits(kernel, c)}
    chosen: list[BlockConfig] = []
    for cut in sorted(others, key=lambda c: estimate_seconds(kernel, c)):
        if sum((c.x_block, c.r_block) == (cut.x_block, cut.r_block) for c in chosen) < MAX_CANDIDATES_PER_BLOCK:
            chosen.append(cut)
    return (usual, *chosen[:MAX_CANDIDATES])


def estimate_seconds(kernel: LoopKernel, block: BlockConfig) -> float:
    """Estimate the run time from memory traffic, bytes in flight, and arithmetic."""
    threads, elements = 32 * block.num_warps, block.x_block * max(block.r_block, 1)
    x, r = _size_or_assumed(kernel.x.size), 1 if kernel.r is None else _size_or_assumed(kernel.r.size)
    whole = [op for op in kernel.ops if op.name == "load" and (kernel.r is None or R in op.loops)]
    read = sum(op.dtype.itemsize for op in whole)
    written = sum(
        op.dtype.itemsize for op in kernel.ops if op.name in WRITE_OPS and op.loops >= ({X, R} if r > 1 else {X})
    )
    registers = 24 + math.ceil(elements / threads) * max(1, len(whole) + _accumulators_per_element(kernel, block))
    held = min(
        MODELED_DEVICE.warps // block.num_warps,
        MODELED_DEVICE.registers // (min(registers, 255) * threads),
        MODELED_DEVICE.shared // (load_shared_bytes(kernel, block) + MODELED_DEVICE.shared_reserved),
        MODELED_DEVICE.blocks,
    )
    programs = math.ceil(x / block.x_block) * (math.ceil(r / block.r_block) if block.has_2d_grid else 1)
    held = max(1, min(held, math.ceil(programs / MULTIPROCESSORS)))
    asked = held * elements * max(read, 1) * max(block.prefetch_depth - 1, 1)
    waves = programs / (held * MULTIPROCESSORS)
    busy = waves / math.ceil(waves) if waves < 4 else 1.0
    moved = x * r * (read * (1 + REREAD_COST * _reread_count(kernel, block)) + written)
    whole_lines: float = (
        min(
            1.0,
            _contiguous_elements(kernel, block)
            * max((op.dtype.itemsize for op in whole), default=MEMORY_LINE_BYTES)
            / MEMORY_LINE_BYTES,
        )
        ** 0.5
    )
    arithmetic = (
        x * r * sum(op.cost for op in kernel.ops) / (FLOPS_PER_SECOND * min(1.0, held * block.num_warps / BUSY_WARPS))
    )
    lost = (1.0 if registers <= 255 else registers / 128) / whole_lines
    return lost * (
        max(moved / (BYTES_PER_SECOND * min(1.0, asked / BYTES_IN_FLIGHT)), arithmetic) / busy
        + math.ceil(waves) * PROGRAM_START_SECONDS
    )


def _all_candidates(kernel: LoopKernel, usual: BlockConfig) -> Iterator[BlockConfig]:
    """Yield all configurations of the default's kind."""
    if kernel.r is None:
        for block, warps in itertools.product((256, 512, 1024, 2048, 4096, 8192), (2, 4, 8)):
            yield BlockConfig(block, 0, False, warps)
        return
    if usual.has_2d_grid:
        sides = (16, 32, 64, 128)
        shapes = [(1, n) for n in (512, 1024, 2048, 4096)] if usual.x_block == 1 else itertools.product(sides, sides)
        for (rows, cols), warps in itertools.product(shapes, (4, 8)):
            yield BlockConfig(rows, cols, False, warps, has_2d_grid=True)
        return
    r = static_size(kernel.r.size)
    if is_outer_reduction(kernel):
        for rows, cols, warps, ahead in itertools.product(
            (16, 32, 64, 128), (64, 128, 256, 512), (4, 8, 16), (0, 3, 4)
        ):
            yield BlockConfig(rows, cols, True, warps, prefetch_depth=ahead)
        if r is not None and r <= 256:
            for rows, warps in itertools.product((16, 32, 64, 128), (4, 8)):
                yield BlockConfig(rows, power_of_two(r), False, warps)
        return
    yield from _row_candidates(kernel, r)


def _row_candidates(kernel: LoopKernel, r: int | None) -> Iterator[BlockConfig]:
    has_scan = any(op.name == "scan" for op in kernel.ops)
    if r is not None and power_of_two(r) <= (MAX_PERSISTENT_SCAN if has_scan else PERSISTENT_LIMIT):
        for rows, warps in itertools.product((1, 2, 4, 8, 16, 32), (1, 2, 4, 8, 16, 32)):
            if rows == 1 or power_of_two(r) <= 1024:
                yield BlockConfig(rows, power_of_two(r), False, warps)
    if r is None or r > 2048:
        for cols, warps, ahead in itertools.product((1024, 2048, 4096, 8192), (4, 8, 16), (0, 3, 4)):
            yield BlockConfig(1, cols, True, warps, prefetch_depth=ahead)


def fits(kernel: LoopKernel, block: BlockConfig) -> bool:
    """Return True if a block suits the threads, shared memory and size of a kernel."""
    elements = block.x_block * max(block.r_block, 1) / (32 * block.num_warps)
    longest = power_of_two(_size_or_assumed(kernel.x.size))
    return (
        MIN_ELEMENTS_PER_THREAD <= elements <= MAX_ELEMENTS_PER_THREAD
        and load_shared_bytes(kernel, block) <= MAX_LOAD_SHARED_BYTES
        and (block.x_block == 1 or block.x_block <= longest)
    )


def _contiguous_elements(kernel: LoopKernel, block: BlockConfig) -> int:
    """Return the number of contiguous elements that a block reads together."""
    if kernel.r is None:
        return block.x_block
    if block.has_2d_grid and block.x_block > 1:
        return min(block.x_block, block.r_block)
    return block.x_block if is_outer_reduction(kernel) else block.x_block * block.r_block


def _accumulators_per_element(kernel: LoopKernel, block: BlockConfig) -> int:
    """Return how many values a looped kernel holds for each element of a block, else 0."""
    return sum(op.name == "reduce" for op in kernel.ops) if block.is_looped else 0


def _reread_count(kernel: LoopKernel, block: BlockConfig) -> int:
    """Return the number of times that a row is read again.

    It is the number of reductions, one depending on another, that a store along the row needs.
    """
    if not block.is_looped:
        return 0
    depth: dict[int, int] = {}
    for op in kernel.ops:
        depth[op.number] = max((depth[a.number] for a in op.args), default=0) + (op.name == "reduce")
    return max((depth[op.number] for op in kernel.ops if _stores_along_row(op)), default=0)


def _stores_along_row(op: LoopIROp) -> bool:
    return R in op.loops and op.name in WRITE_OPS


def _size_or_assumed(size: object) -> int:
    static = static_size(size)
    return ASSUMED_SIZE if static is None else static
