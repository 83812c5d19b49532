"""Controls for tuning a kernel: block sizes, warps and stages, or vectors on a CPU."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from engine.errors import BadArgument
from engine.ir.kernels.host_vectors import VectorUnit
from engine.ir.kernels.llvm_machine import host_unit
from engine.ir.kernels.lowered_program import CPU_TARGET
from engine.ir.loop_ir.loop_kernel import BlockConfig, LoopKernel, MatmulConfig, VectorConfig
from engine.kernels import dependences
from engine.kernels.cpu.loop_plan import LoopPlan, make_plan
from engine.kernels.triton.block_configs import fits
from engine.kernels.triton.block_heuristics import default_blocking, is_outer_reduction, power_of_two
from engine.records.kernels import TuningControl

BITS, VECTORS = "vector_bits", "vectors"
BLOCK, ROWS, COLS, INNER = "BLOCK", "ROWS", "COLS", "INNER"
WARPS, STAGES = "num_warps", "num_stages"
POINTWISE_BLOCKS = (256, 512, 1024, 2048, 4096, 8192)
TILE_SIDES = (16, 32, 64, 128)
ROW_COUNTS = (1, 2, 4, 8, 16, 32)
ROW_BLOCKS = (1024, 2048, 4096, 8192)
OUTER_BLOCKS = (64, 128, 256, 512)
MAX_SHARED_ROW = 1024
"""Longest row of which one program may hold several."""


def controls_of(kernel: LoopKernel, target: str) -> tuple[TuningControl, ...]:
    """Return the controls of a kernel, the most important first; empty if it has none."""
    if kernel.companions:
        return ()
    if target == CPU_TARGET:
        return _cpu_controls(kernel)
    return _triton_controls(kernel) if kernel.matmul is None else _matmul_controls(kernel.matmul.config)


def all_values(kernel: LoopKernel, target: str, values: Mapping[str, int]) -> dict[str, int]:
    """Return a value for each control: the one that is given, or the default.

    Raises:
        BadArgument: a control does not offer a value. A kernel made with it might never end.
    """
    controls = controls_of(kernel, target)
    for control in controls:
        if (value := values.get(control.name, control.default)) not in control.values:
            offered = ", ".join(map(str, control.values))
            raise BadArgument(f"{control.name} cannot be {value}: choose from {offered}.")
    return {c.name: values.get(c.name, c.default) for c in controls}


def with_values(kernel: LoopKernel, target: str, values: Mapping[str, int]) -> LoopKernel:
    """Return a kernel with other values of some controls.

    Raises:
        BadArgument: the values do not suit the kernel.
    """
    chosen = all_values(kernel, target, values)
    if target == CPU_TARGET:
        if not chosen[BITS] and chosen.get(VECTORS, 1) != 1:
            raise BadArgument("without vectors, an iteration computes one element")
        tuned = replace(kernel, vector_config=VectorConfig(chosen[BITS], chosen.get(VECTORS, 1)))
        plan = _plan_of(tuned, host_unit().narrowed(chosen[BITS]))
        if plan.unrolled_var is None and plan.copies < chosen.get(VECTORS, 1):
            raise BadArgument(f"the loop fits in {plan.copies} vectors")
        return tuned
    if kernel.matmul is not None:
        tile = (chosen[ROWS], chosen[COLS], chosen[INNER], chosen[WARPS], chosen[STAGES])
        config = MatmulConfig(*tile, group_m=kernel.matmul.config.group_m)
        return replace(kernel, matmul=replace(kernel.matmul, config=config))
    default = default_blocking(kernel)
    block = replace(
        default,
        x_block=chosen.get(BLOCK, chosen.get(ROWS, default.x_block)),
        r_block=chosen.get(COLS, default.r_block),
        num_warps=chosen[WARPS],
        prefetch_depth=chosen.get(STAGES, default.prefetch_depth),
    )
    if block != default and not fits(kernel, block):
        raise BadArgument("a thread has too few or too many elements, or shared memory is too small")
    return replace(kernel, block_config=block)


def _cpu_controls(kernel: LoopKernel) -> tuple[TuningControl, ...]:
    unit = host_unit()
    plan = _plan_of(kernel, unit)
    if plan.lane_var is None:
        return ()
    bits = _control(BITS, (0, *(b for b in (128, 256, 512) if b <= unit.bits)), unit.bits)
    if plan.tile_var is not None:  # a tile has as many rows as a vector has lanes
        return (bits,)
    return (bits, _control(VECTORS, (1, 2, 4, 8), plan.copies))


def _plan_of(kernel: LoopKernel, unit: VectorUnit) -> LoopPlan:
    return make_plan(kernel, dependences.live_ops(kernel.ops, keeps_checks=True), unit)


def _matmul_controls(config: MatmulConfig) -> tuple[TuningControl, ...]:
    return (
        _control(ROWS, TILE_SIDES, config.block_m),
        _control(COLS, TILE_SIDES, config.block_n),
        _control(INNER, (16, 32, 64), config.block_k),
        _control(WARPS, (2, 4, 8), config.num_warps),
        _control(STAGES, (2, 3, 4, 5), config.num_stages),
    )


def _triton_controls(kernel: LoopKernel) -> tuple[TuningControl, ...]:
    default = default_blocking(kernel)
    warps = _control(WARPS, (1, 2, 4, 8, 16), default.num_warps)
    if kernel.r is None:
        return (_control(BLOCK, POINTWISE_BLOCKS, default.x_block), warps)
    rows, columns = _row_values(kernel, default), _column_values(kernel, default)
    controls = [_control(ROWS, rows, default.x_block)] if rows else []
    controls += [_control(COLS, columns, default.r_block)] if columns else []
    stages = [_control(STAGES, (0, 3, 4), default.prefetch_depth)] if default.is_looped else []
    return (*controls, warps, *stages)


def _row_values(kernel: LoopKernel, default: BlockConfig) -> tuple[int, ...]:
    if default.has_2d_grid or is_outer_reduction(kernel):
        return () if default.x_block == 1 else TILE_SIDES
    return ROW_COUNTS if not default.is_looped and power_of_two(default.r_block) <= MAX_SHARED_ROW else ()


def _column_values(kernel: LoopKernel, default: BlockConfig) -> tuple[int, ...]:
    if default.has_2d_grid:
        return ROW_BLOCKS if default.x_block == 1 else TILE_SIDES
    if not default.is_looped:
        return ()
    return OUTER_BLOCKS if is_outer_reduction(kernel) else ROW_BLOCKS


def _control(name: str, values: tuple[int, ...], default: int) -> TuningControl:
    return TuningControl(name, tuple(sorted({*values, default})), default)
