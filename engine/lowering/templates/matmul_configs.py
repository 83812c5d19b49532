"""Ways to cut a product of matrices into tiles, the likeliest first: a rough model of time keeps out what need not be measured.

Not among them, since they did not win on an H200 (bf16, Triton 3.6, in turns with cuBLAS, GELU behind two of the six sizes): persistent kernels
that read tiles by descriptors (Hopper's TMA) reach 0.98 to 1.02 of the library's speed, with specialised warps at most 1.01, where plain pointers
reach 0.96 to 1.01; sums split among programs, whose parts a last pass adds up, 0.65 to 0.80.
"""

from __future__ import annotations

import math

from engine.ir.loop_ir.loop_kernel import MatmulConfig

MULTIPROCESSORS = 132
"""Multiprocessors of the card that the model has in mind."""
FLOPS_PER_SECOND, BYTES_PER_SECOND, TILE_START_SECONDS = 6e14, 3.5e12, 1.5e-6
"""Operations and bytes a second, and seconds until a tile's first slice is there."""
MAX_SHARED_BYTES = 200_000
"""Bytes of shared memory that the slices on the way may take."""
MAX_CANDIDATES = 8
"""Ways that are measured."""
MAX_TILE_WITHOUT_TENSOR_CORES, MAX_CANDIDATES_WITHOUT_TENSOR_CORES = 64 * 64, 3
"""Elements of a tile, and ways, where tensor cores do not multiply: each takes seconds to compile, and none is much faster than another."""

_SKINNY_TILINGS = (
    MatmulConfig(16, 32, 128, 4, 4), MatmulConfig(16, 32, 256, 4, 3), MatmulConfig(16, 64, 128, 4, 4), MatmulConfig(16, 16, 256, 4, 4), MatmulConfig(16, 64, 256, 8, 3),
    MatmulConfig(16, 128, 64, 4, 4), MatmulConfig(16, 128, 128, 8, 3), MatmulConfig(32, 32, 128, 4, 4), MatmulConfig(32, 64, 128, 4, 4),
)  # fmt: skip
_SQUARE_TILINGS = (
    MatmulConfig(128, 128, 64, 8, 3), MatmulConfig(128, 256, 64, 8, 3), MatmulConfig(128, 128, 64, 4, 4), MatmulConfig(64, 128, 64, 4, 4), MatmulConfig(128, 64, 64, 4, 4),
    MatmulConfig(64, 64, 64, 4, 4), MatmulConfig(64, 256, 64, 8, 3), MatmulConfig(256, 128, 64, 8, 3), MatmulConfig(64, 32, 128, 4, 3), MatmulConfig(32, 128, 128, 4, 3),
    MatmulConfig(64, 64, 128, 4, 3),
)  # fmt: skip


def candidate_tilings(
    matrices: int, rows: int, cols: int, inner: int, width: int, *, without_tensor_cores: bool = False
) -> tuple[MatmulConfig, ...]:
    """At most ``MOST`` ways, the one that should be fastest first. ``width``: bytes of an operand's element; ``without_tensor_cores``: no tensor core takes it."""
    smallest = min(rows, cols)
    known: tuple[MatmulConfig, ...] = _SKINNY_TILINGS + _SQUARE_TILINGS if smallest < 128 else _SQUARE_TILINGS
    if without_tensor_cores:
        known = tuple(t for t in known if t.block_m * t.block_n <= MAX_TILE_WITHOUT_TENSOR_CORES)
    found = {_fit_to_sizes(t, rows, cols, inner, width): None for t in known}
    return tuple(
        sorted(found, key=lambda t: estimate_seconds(t, matrices, rows, cols, inner, width))[
            : MAX_CANDIDATES_WITHOUT_TENSOR_CORES if without_tensor_cores else MAX_CANDIDATES
        ]
    )


def estimate_seconds(tiling: MatmulConfig, matrices: int, rows: int, cols: int, inner: int, width: int) -> float:
    """What the model gives: tiles in waves over the multiprocessors, each bound by arithmetic or by what it reads."""
    tiles = matrices * math.ceil(rows / tiling.block_m) * math.ceil(cols / tiling.block_n)
    waves = math.ceil(tiles / MULTIPROCESSORS)
    slices = math.ceil(inner / tiling.block_k)
    # Small tiles leave tensor cores waiting for shared memory.
    filled = min(1.0, tiling.block_m / 64) * min(1.0, tiling.block_m * tiling.block_n / (128 * 128)) ** 0.25
    work = (
        2.0 * tiling.block_m * tiling.block_n * tiling.block_k * slices / (FLOPS_PER_SECOND / MULTIPROCESSORS * filled)
    )
    read = (
        width * (tiling.block_m + tiling.block_n) * tiling.block_k * slices / (2 * BYTES_PER_SECOND / MULTIPROCESSORS)
    )
    busy = min(tiles, MULTIPROCESSORS) / MULTIPROCESSORS
    whole = width * matrices * (rows * inner + inner * cols + rows * cols) / (BYTES_PER_SECOND * max(busy, 0.25))
    return float(max(waves * max(work, read), whole) + TILE_START_SECONDS + slices * 2e-7)


def _fit_to_sizes(tiling: MatmulConfig, rows: int, cols: int, inner: int, width: int) -> MatmulConfig:
    """The same with sides no longer than the matrices', and slices that fit into shared memory."""
    high, wide = _fit_side(tiling.block_m, rows), _fit_side(tiling.block_n, cols)
    deep, stages = min(tiling.block_k, max(16, _next_power_of_two(inner))), tiling.num_stages
    while deep > 16 and width * (high + wide) * deep * stages > MAX_SHARED_BYTES:
        deep, stages = (deep, stages - 1) if stages > 2 else (deep // 2, stages)
    warps = max(1, min(tiling.num_warps, high * wide // 256))
    return MatmulConfig(high, wide, deep, warps, stages, tiling.group_m)


def _fit_side(wanted: int, size: int) -> int:
    return max(16, min(wanted, _next_power_of_two(size)))


def _next_power_of_two(size: int) -> int:
    return 1 << max(size - 1, 0).bit_length()
