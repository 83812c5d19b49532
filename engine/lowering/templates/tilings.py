"""Ways to cut a product of matrices into tiles, the likeliest first: a rough model of time keeps out what need not be measured.

Not among them, since they did not win on an H200 (bf16, Triton 3.6, in turns with cuBLAS, GELU behind two of the six sizes): persistent kernels
that read tiles by descriptors (Hopper's TMA) reach 0.98 to 1.02 of the library's speed, with specialised warps at most 1.01, where plain pointers
reach 0.96 to 1.01; sums split among programs, whose parts a last pass adds up, 0.65 to 0.80.
"""

from __future__ import annotations

import math

from engine.ir.loops import Tiling

PROCESSORS = 132
"""Multiprocessors of the card that the model has in mind."""
RATE, BANDWIDTH, OVERHEAD = 6e14, 3.5e12, 1.5e-6
"""Operations and bytes a second, and seconds until a tile's first slice is there."""
SHARED = 200_000
"""Bytes of shared memory that the slices on the way may take."""
MOST = 8
"""Ways that are measured."""
SLOW, MOST_SLOW = 64 * 64, 3
"""Elements of a tile, and ways, where tensor cores do not multiply: each takes seconds to compile, and none is much faster than another."""

_SKINNY = (
    Tiling(16, 32, 128, 4, 4), Tiling(16, 32, 256, 4, 3), Tiling(16, 64, 128, 4, 4), Tiling(16, 16, 256, 4, 4), Tiling(16, 64, 256, 8, 3),
    Tiling(16, 128, 64, 4, 4), Tiling(16, 128, 128, 8, 3), Tiling(32, 32, 128, 4, 4), Tiling(32, 64, 128, 4, 4),
)  # fmt: skip
_SQUARE = (
    Tiling(128, 128, 64, 8, 3), Tiling(128, 256, 64, 8, 3), Tiling(128, 128, 64, 4, 4), Tiling(64, 128, 64, 4, 4), Tiling(128, 64, 64, 4, 4),
    Tiling(64, 64, 64, 4, 4), Tiling(64, 256, 64, 8, 3), Tiling(256, 128, 64, 8, 3), Tiling(64, 32, 128, 4, 3), Tiling(32, 128, 128, 4, 3),
    Tiling(64, 64, 128, 4, 3),
)  # fmt: skip


def tilings(
    matrices: int, rows: int, cols: int, inner: int, width: int, *, is_slow: bool = False
) -> tuple[Tiling, ...]:
    """At most ``MOST`` ways, the one that should be fastest first. ``width``: bytes of an operand's element; ``is_slow``: no tensor core takes it."""
    smallest = min(rows, cols)
    known: tuple[Tiling, ...] = _SKINNY + _SQUARE if smallest < 128 else _SQUARE
    if is_slow:
        known = tuple(t for t in known if t.rows * t.cols <= SLOW)
    found = {_fitted(t, rows, cols, inner, width): None for t in known}
    return tuple(
        sorted(found, key=lambda t: seconds(t, matrices, rows, cols, inner, width))[: MOST_SLOW if is_slow else MOST]
    )


def seconds(tiling: Tiling, matrices: int, rows: int, cols: int, inner: int, width: int) -> float:
    """What the model gives: tiles in waves over the multiprocessors, each bound by arithmetic or by what it reads."""
    tiles = matrices * math.ceil(rows / tiling.rows) * math.ceil(cols / tiling.cols)
    waves = math.ceil(tiles / PROCESSORS)
    slices = math.ceil(inner / tiling.inner)
    # Small tiles leave tensor cores waiting for shared memory.
    filled = min(1.0, tiling.rows / 64) * min(1.0, tiling.rows * tiling.cols / (128 * 128)) ** 0.25
    work = 2.0 * tiling.rows * tiling.cols * tiling.inner * slices / (RATE / PROCESSORS * filled)
    read = width * (tiling.rows + tiling.cols) * tiling.inner * slices / (2 * BANDWIDTH / PROCESSORS)
    busy = min(tiles, PROCESSORS) / PROCESSORS
    whole = width * matrices * (rows * inner + inner * cols + rows * cols) / (BANDWIDTH * max(busy, 0.25))
    return float(max(waves * max(work, read), whole) + OVERHEAD + slices * 2e-7)


def _fitted(tiling: Tiling, rows: int, cols: int, inner: int, width: int) -> Tiling:
    """The same with sides no longer than the matrices', and slices that fit into shared memory."""
    high, wide = _side(tiling.rows, rows), _side(tiling.cols, cols)
    deep, stages = min(tiling.inner, max(16, _power(inner))), tiling.num_stages
    while deep > 16 and width * (high + wide) * deep * stages > SHARED:
        deep, stages = (deep, stages - 1) if stages > 2 else (deep // 2, stages)
    warps = max(1, min(tiling.num_warps, high * wide // 256))
    return Tiling(high, wide, deep, warps, stages, tiling.group)


def _side(wanted: int, size: int) -> int:
    return max(16, min(wanted, _power(size)))


def _power(size: int) -> int:
    return 1 << max(size - 1, 0).bit_length()
