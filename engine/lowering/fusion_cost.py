"""Cost of fusing: reads, bytes and operations that fusion would repeat."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from engine.ir.loop_ir.builder import LoopBuilder
from engine.ir.loop_ir.index_expr import LoopVar, Size, contiguous_strides, flatten, product, static_product, variable
from engine.ir.loop_ir.tensor_def import TensorDef
from engine.ir.static_sizes import static_size

if TYPE_CHECKING:
    from engine.lowering.scheduler import FusionGroup

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


MIN_VECTOR_COST = 8
"""Minimum cost of an op for which a separate, vectorized kernel pays off."""


def row_major_strides(variables: Iterable[LoopVar]) -> tuple[Size, ...]:
    """Return the stride of each loop, in iterations, if the loops are numbered as one."""
    return contiguous_strides(tuple(v.size for v in variables))


def build_unfused(made: TensorDef) -> LoopBuilder:
    """Return the ops of one element of a definition, with nothing fused; they are built once."""
    if made.unfused is not None:
        return made.unfused
    builder = LoopBuilder()
    index = tuple(variable(LoopVar(f"i{d}", n)) for d, n in enumerate(made.loop_ranges))
    if made.kind == "reduction":
        inner = tuple(LoopVar(f"r{k}", n) for k, n in enumerate(made.ranges))
        builder = LoopBuilder((), frozenset(inner), flatten([variable(v) for v in inner], row_major_strides(inner)))
    builder.inline_body(made, index)
    made.unfused = builder
    return builder


def reads_sparsely(made: TensorDef, group: FusionGroup) -> bool:
    """Return True if recomputing the few elements that a kernel reads is cheaper than storing.

    ``made`` must be pointwise.
    """
    total, own = static_product((group.numel,)), static_product(made.shape)
    if made.kind != "pointwise" or total is None or own is None:
        return False
    return total * len(group.reads_of(made)) * SPARSE_READ_RATIO <= own


def has_no_reads(made: TensorDef) -> bool:
    """Return True if a definition is computed from constants and indices only, at low cost."""
    if made.kind != "pointwise":
        return False
    probe = build_unfused(made)
    return not probe.memory_reads and cost_of(probe) <= MAX_RECOMPUTE_COST


def is_cheap_to_recompute(made: TensorDef, times: int = 1) -> bool:
    """Return True if recomputing ``made`` ``times`` times is cheaper than storing and loading.

    That is so if it reads no more bytes than it writes, with little arithmetic.
    """
    if made.kind != "pointwise":
        return False
    probe, own = build_unfused(made), product(made.shape)
    sources = [s for s in probe.read_tensors.values() if not is_negligible_size(product(s.shape), own)]
    if len(sources) > 1 or any(source.dtype.itemsize > made.dtype.itemsize for source in sources):
        return False
    saves = any(source.dtype.itemsize < made.dtype.itemsize for source in sources)
    return times * cost_of(probe) <= (MAX_RECOMPUTE_COST_FEWER_BYTES if saves else MAX_RECOMPUTE_COST_SAME_BYTES)


def wasted_cost(group: FusionGroup, made: TensorDef) -> float:
    """Return the cost per iteration of masked-out values if the kernel computes ``made``.

    A vector computes both sides of a condition. 0 for symbolic sizes.
    """
    total = static_product((group.numel,))
    if not total:
        return 0
    needed = 0.0
    for member in (*group.members, made):
        iterations = static_product((*member.shape, *member.ranges))
        needed += cost_of(build_unfused(member)) * (1 if iterations is None else iterations / total)
    return cost_of(group.builder) + cost_of(build_unfused(made)) - needed


def cost_of(builder: LoopBuilder) -> int:
    """Return the arithmetic cost of the ops of one iteration."""
    return sum(op.cost for op in builder.ops)


def has_costly_op(builder: LoopBuilder) -> bool:
    """Return True if one of the ops is as costly as an exponential."""
    return any(op.cost >= MIN_VECTOR_COST and op.name not in ("scan", "reduce") for op in builder.ops)


def scans_rows(made: TensorDef) -> bool:
    """Return True if a definition is a scan along adjacent elements."""
    return made.kind == "scan" and static_size(made.stride[made.scan_axis]) == 1


def is_negligible_size(size: Size, whole: Size) -> bool:
    """Return True if ``size`` elements are negligible compared with ``whole``."""
    part, all_elements = static_product((size,)), static_product((whole,))
    return part is not None and all_elements is not None and part * SPARSE_READ_RATIO <= all_elements


def stored_bytes(made: TensorDef) -> int | None:
    """Return the bytes of a stored definition, None if the size is symbolic."""
    return static_product((*made.shape, made.dtype.itemsize))


def bytes_saved(made: TensorDef, times: int = 2) -> int | None:
    """Return the traffic in bytes saved by not storing and loading; None if symbolic."""
    size = stored_bytes(made)
    return None if size is None else size * times
