"""Cost of fusing: reads, bytes and operations that fusion would repeat."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from engine.ir.loop_ir.builder import LoopBuilder
from engine.ir.loop_ir.index_conditions import MAX_OPS_IN_PIECES, iterations_under, pieces_of
from engine.ir.loop_ir.index_expr import LoopVar, Size, contiguous_strides, flatten, product, static_product, variable
from engine.ir.loop_ir.tensor_def import TensorDef
from engine.ir.static_sizes import static_size

if TYPE_CHECKING:
    from engine.lowering.fusion.fusion_group import FusionGroup

SPARSE_READ_RATIO = 16
"""A kernel that reads at most one in this many elements of a tensor recomputes them."""


MAX_RECOMPUTE_COST = 10
"""Highest cost per element of arithmetic that is recomputed instead of stored and loaded."""


MAX_RECOMPUTE_COST_SAME_BYTES, MAX_RECOMPUTE_COST_FEWER_BYTES = 16, 40
"""``MAX_RECOMPUTE_COST`` if the inputs take as many bytes as the result, or fewer."""


MAX_WASTED_COST = 16
"""Highest cost per iteration of masked-out values that a CPU kernel may compute.

It is that of a store and a load.
"""


MIN_PIECE = 16
"""Fewest iterations of a piece of a divided loop: the lanes of a long vector."""

MIN_VECTOR_COST = 8
"""Minimum cost of an op for which a separate, vectorized kernel pays off."""

MAX_FUSIBLE = 48
"""Maximum number of definitions fused into a reduction whose reads decide how it is split."""


def row_major_strides(variables: Iterable[LoopVar]) -> tuple[Size, ...]:
    """Return the stride of each loop, in iterations, if the loops are numbered as one."""
    return contiguous_strides(tuple(v.size for v in variables))


def build_unfused(tensor_def: TensorDef) -> LoopBuilder:
    """Return the ops of one element of a definition, with nothing fused; they are built once."""
    if tensor_def.unfused is not None:
        return tensor_def.unfused
    builder = LoopBuilder()
    index = tuple(variable(LoopVar(f"i{d}", n)) for d, n in enumerate(tensor_def.loop_ranges))
    if tensor_def.kind == "reduction":
        inner = tuple(LoopVar(f"r{k}", n) for k, n in enumerate(tensor_def.ranges))
        builder = LoopBuilder((), frozenset(inner), flatten([variable(v) for v in inner], row_major_strides(inner)))
    builder.inline_body(tensor_def, index)
    tensor_def.unfused = builder
    return builder


def fusible_sources(definition: TensorDef) -> set[TensorDef]:
    """Return the pointwise definitions that a kernel which reads a definition may compute."""
    fusible, left = set[TensorDef](), [definition]
    while left and len(fusible) < MAX_FUSIBLE:
        source = left.pop()
        if source.kind == "pointwise" and source not in fusible:
            fusible.add(source)
            left += build_unfused(source).read_tensors.values()
    return fusible


def reads_sparsely(tensor_def: TensorDef, group: FusionGroup) -> bool:
    """Return True if recomputing the few elements that a kernel reads is cheaper than storing.

    ``tensor_def`` must be pointwise.
    """
    total, own = static_product((group.numel,)), static_product(tensor_def.shape)
    if tensor_def.kind != "pointwise" or total is None or own is None:
        return False
    return total * len(group.reads_of(tensor_def)) * SPARSE_READ_RATIO <= own


def has_no_reads(tensor_def: TensorDef) -> bool:
    """Return True if a definition is computed from constants and indices only, at low cost."""
    if tensor_def.kind != "pointwise":
        return False
    probe = build_unfused(tensor_def)
    return not probe.memory_reads and cost_of(probe) <= MAX_RECOMPUTE_COST


def is_cheap_to_recompute(tensor_def: TensorDef, times: int = 1) -> bool:
    """Return True if ``times`` recomputations are cheaper than storing and loading.

    That is so if it reads no more bytes than it writes, with little arithmetic.
    """
    if tensor_def.kind != "pointwise":
        return False
    probe, own = build_unfused(tensor_def), product(tensor_def.shape)
    sources = [s for s in probe.read_tensors.values() if not is_negligible_size(product(s.shape), own)]
    if len(sources) > 1 or any(source.dtype.itemsize > tensor_def.dtype.itemsize for source in sources):
        return False
    saves = any(source.dtype.itemsize < tensor_def.dtype.itemsize for source in sources)
    return times * cost_of(probe) <= (MAX_RECOMPUTE_COST_FEWER_BYTES if saves else MAX_RECOMPUTE_COST_SAME_BYTES)


def wasted_cost(group: FusionGroup, tensor_def: TensorDef) -> float:
    """Return the cost per iteration of masked-out values if the kernel computes it.

    A vector computes both sides of a condition. 0 for symbolic sizes.
    """
    total = static_product((group.numel,))
    if not total:
        return 0
    needed = 0.0
    for member in (*group.members, tensor_def):
        iterations = static_product((*member.shape, *member.ranges))
        needed += cost_of(build_unfused(member)) * (1 if iterations is None else iterations / total)
    return cost_of(group.builder) + cost_of(build_unfused(tensor_def)) - needed


def repeats_in_pieces(tensor_def: TensorDef, group: FusionGroup) -> float | None:
    """Return how often a CPU kernel would compute each element that it reads under conditions.

    None if it would also compute it where the conditions are false: the innermost loop is not divided by them.
    """
    total, own = static_product((group.numel,)), static_product(tensor_def.shape)
    if not total or not own or group.reduction_vars is not None or not group.loop_vars:
        return None
    if not static_size((var := group.loop_vars[-1]).size):
        return None
    pieces = pieces_of(group.builder.ops, var, MIN_PIECE)
    ops = len(group.builder.ops) + len(build_unfused(tensor_def).ops)
    masks = [op.mask for op in group.builder.ops if op.name == "load" and op.buffer == tensor_def.name]
    if len(pieces) < 2 or len(pieces) * ops > MAX_OPS_IN_PIECES or any(mask is None for mask in masks):
        return None
    counts = [iterations_under(mask, var, pieces) for mask in masks if mask is not None]
    if any(count is None for count in counts):
        return None
    return sum(count or 0 for count in counts) * (total // (static_size(var.size) or 1)) / own


def cost_of(builder: LoopBuilder) -> int:
    """Return the arithmetic cost of the ops of one iteration."""
    return sum(op.cost for op in builder.ops)


def has_costly_op(builder: LoopBuilder) -> bool:
    """Return True if one of the ops is as costly as an exponential."""
    return any(op.cost >= MIN_VECTOR_COST and op.name not in ("scan", "reduce") for op in builder.ops)


def scans_rows(tensor_def: TensorDef) -> bool:
    """Return True if a definition is a scan along adjacent elements."""
    return tensor_def.kind == "scan" and static_size(tensor_def.stride[tensor_def.scan_axis]) == 1


def is_negligible_size(size: Size, total: Size) -> bool:
    """Return True if ``size`` elements are negligible compared with ``total``."""
    part, all_elements = static_product((size,)), static_product((total,))
    return part is not None and all_elements is not None and part * SPARSE_READ_RATIO <= all_elements


def stored_bytes(tensor_def: TensorDef) -> int | None:
    """Return the bytes of a stored definition, None if the size is symbolic."""
    return static_product((*tensor_def.shape, tensor_def.dtype.itemsize))


def bytes_saved(tensor_def: TensorDef, times: int = 2) -> int | None:
    """Return the traffic in bytes saved by not storing and loading; None if symbolic."""
    size = stored_bytes(tensor_def)
    return None if size is None else size * times
