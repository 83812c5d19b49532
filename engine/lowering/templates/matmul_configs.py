"""Candidate tile configurations of a matmul, ranked by a rough cost model.

Some kinds of kernels are not candidates, since they were not faster on an H200 (bf16, Triton 3.6, alternating with
cuBLAS, GELU after two of the six sizes). Persistent kernels that load tiles by descriptors (Hopper's TMA) reach
0.98 to 1.02 of the library's speed, at most 1.01 with warp specialization; plain pointers reach 0.96 to 1.01.
Split-K kernels, whose parts a final pass adds up, reach 0.65 to 0.80.
"""

from __future__ import annotations

import math

from engine.ir.loop_ir.loop_kernel import MatmulConfig

MULTIPROCESSORS = 132
"""Multiprocessors of the device that the cost model assumes."""
FLOPS_PER_SECOND, BYTES_PER_SECOND, TILE_START_SECONDS = 6e14, 3.5e12, 1.5e-6
"""FLOP/s, bytes/s, and seconds until a tile's first slice is loaded."""
MAX_SHARED_BYTES = 200_000
"""Bytes of shared memory for the slices in flight."""
MAX_CANDIDATES = 8
"""Most candidates that are measured."""
MAX_TILE_WITHOUT_TENSOR_CORES, MAX_CANDIDATES_WITHOUT_TENSOR_CORES = 64 * 64, 3
"""Most elements of a tile, and most candidates, if tensor cores are not used.

Each candidate takes seconds to compile, and none is much faster than another.
"""

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
    """Return at most ``MAX_CANDIDATES`` configurations, the fastest by the cost model first.

    ``width``: bytes of an operand's element. ``without_tensor_cores``: tensor cores do not support the precision.
    """
    smallest = min(rows, cols)
    tilings: tuple[MatmulConfig, ...] = _SKINNY_TILINGS + _SQUARE_TILINGS if smallest < 128 else _SQUARE_TILINGS
    if without_tensor_cores:
        tilings = tuple(t for t in tilings if t.block_m * t.block_n <= MAX_TILE_WITHOUT_TENSOR_CORES)
    fitted = {_fit_to_sizes(t, rows, cols, inner, width): None for t in tilings}
    return tuple(
        sorted(fitted, key=lambda t: estimate_seconds(t, matrices, rows, cols, inner, width))[
            : MAX_CANDIDATES_WITHOUT_TENSOR_CORES if without_tensor_cores else MAX_CANDIDATES
        ]
    )


def estimate_seconds(tiling: MatmulConfig, matrices: int, rows: int, cols: int, inner: int, width: int) -> float:
    """Estimate the run time: waves of tiles, each bound by arithmetic or by its reads."""
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
    memory_seconds = (
        width * matrices * (rows * inner + inner * cols + rows * cols) / (BYTES_PER_SECOND * max(busy, 0.25))
    )
    return float(max(waves * max(work, read), memory_seconds) + TILE_START_SECONDS + slices * 2e-7)


def _fit_to_sizes(tiling: MatmulConfig, rows: int, cols: int, inner: int, width: int) -> MatmulConfig:
    """Limit the sides of a tile to the matrix sizes, and its slices to the shared memory."""
    high, wide = _fit_side(tiling.block_m, rows), _fit_side(tiling.block_n, cols)
    deep, stages = min(tiling.block_k, max(16, next_power_of_two(inner))), tiling.num_stages
    while deep > 16 and width * (high + wide) * deep * stages > MAX_SHARED_BYTES:
        deep, stages = (deep, stages - 1) if stages > 2 else (deep // 2, stages)
    warps = max(1, min(tiling.num_warps, high * wide // 256))
    return MatmulConfig(high, wide, deep, warps, stages, tiling.group_m)


def _fit_side(preferred: int, size: int) -> int:
    return max(16, min(preferred, next_power_of_two(size)))


def next_power_of_two(size: int) -> int:
    """Return the smallest power of two that is not below a size."""
    return 1 << max(size - 1, 0).bit_length()
