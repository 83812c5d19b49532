"""Reasons why the scheduler stores a definition instead of computing it where it is read."""

from __future__ import annotations

from dataclasses import replace

from engine.ir.loop_ir.builder import LoopBuilder
from engine.ir.loop_ir.index_expr import (
    LoopVar,
    adjacent_variables,
    flatten,
    is_bijection,
    product,
    sizes_equal,
    static_product,
)
from engine.ir.loop_ir.tensor_def import Coordinates, MemoryRead, TensorDef
from engine.ir.static_sizes import static_size
from engine.lowering.fusion.align_loops import (
    MIN_REDUCTION_ROWS,
    axis_variable,
    used_vars,
)
from engine.lowering.fusion.fusion_cost import (
    MAX_RECOMPUTE_COST,
    MAX_WASTED_COST,
    SPARSE_READ_RATIO,
    build_unfused,
    fusible_sources,
    has_costly_op,
    is_negligible_size,
    repeats_in_pieces,
    scans_rows,
    wasted_cost,
)
from engine.lowering.fusion.fusion_group import FusionGroup

SCAN_IS_SCALAR = "A CPU scans a row one element at a time, and computes costly arithmetic many elements at a time."
MAX_MEMBERS = 48
"""Maximum number of definitions that one kernel computes."""
MAX_READS = 20
"""Maximum number of tensors that one kernel reads."""
MAX_STRIDED_ROW = 2048
"""Maximum length of rows of which a program holds several, for whole memory lines."""
LARGE_KERNEL_ELEMENTS = 1 << 14
"""Elements from which on a kernel counts as large."""
MAX_REPEATED_COST = 4 * MAX_RECOMPUTE_COST
"""Highest cost of arithmetic per stored element, with repetitions."""
MAX_REPEATED_READS = 16
"""Maximum number of reads per stored element, with repetitions."""
MIN_REPEATING_ELEMENTS, MIN_REPEATED_ELEMENTS = 1 << 22, 1 << 16
"""Sizes of a kernel and of a value from which on the value is not repeated."""
MAX_READS_IF_CHEAP = 2
"""Maximum number of reads of a cheap definition that is repeated without limit."""


def is_storable(tensor_def: TensorDef, group: FusionGroup, index: Coordinates) -> bool:
    """Return True if a kernel visits each element at this index exactly once."""
    return is_bijection(index, tensor_def.shape, group.loop_vars) or (
        group.reduction_vars is not None and is_bijection(index, tensor_def.shape, group.outer_vars)
    )


def why_not_fusible(tensor_def: TensorDef, group: FusionGroup, *, stored: bool, is_cpu: bool) -> str | None:
    """Return the reason why a definition cannot join its reader, None if it can."""
    memory_reads = group.reads_of(tensor_def)
    if tensor_def in group.scatter_bases:
        return "The kernel updates a copy of it, so all its elements must be stored first."
    if len(group.members) >= MAX_MEMBERS:
        return f"The kernel already computes {MAX_MEMBERS} tensors."
    if len(group.input_defs()) >= MAX_READS:
        return f"The kernel already reads {MAX_READS} tensors."
    if tensor_def.kind == "reduction":
        return _why_not_fusible_reduction(tensor_def, group, memory_reads, is_cpu=is_cpu)
    if tensor_def.kind == "scan":
        return _why_not_fusible_scan(tensor_def, group, memory_reads, is_cpu=is_cpu)
    if is_cpu and has_costly_op(build_unfused(tensor_def)) and any(scans_rows(m) for m in group.members):
        return SCAN_IS_SCALAR
    storable = [d for d in memory_reads if is_storable(tensor_def, group, d.index)]
    if stored and not any(not d.is_masked for d in storable):
        return "It must also be stored, and this kernel does not visit each of its elements exactly once."
    if len(storable) == len(memory_reads) == 1:
        return None
    is_masked = is_cpu and any(d.is_masked for d in memory_reads)
    repeats = repeats_in_pieces(tensor_def, group) if is_masked else None
    if is_masked and repeats is None and wasted_cost(group, tensor_def) > MAX_WASTED_COST:
        return "A CPU takes longer to compute it where it is not needed, as in other parts of a concatenation."
    why = None if is_cpu else _why_stored_once(tensor_def, group)
    if why is not None and not _reduces_operand(tensor_def, group, is_cpu=is_cpu):
        return why
    return _why_not_recomputed(tensor_def, group, memory_reads, repeats)


def _reduces_operand(tensor_def: TensorDef, group: FusionGroup, *, is_cpu: bool) -> bool:
    """Return True if a kernel visits the elements of a reduction that ``tensor_def`` reads."""
    for read in build_unfused(tensor_def).memory_reads:
        if read.source.kind != "reduction" or not read.source.is_computed:
            continue
        for outer in group.reads_of(tensor_def):
            at = {LoopVar(f"i{d}", n): outer.index[d] for d, n in enumerate(tensor_def.shape)}
            reads = [replace(outer, source=read.source, index=tuple(i.replace(at) for i in read.index))]
            if _why_not_fusible_reduction(read.source, group, reads, is_cpu=is_cpu) is None:
                return True
    return False


def _why_not_fusible_reduction(
    tensor_def: TensorDef, group: FusionGroup, memory_reads: list[MemoryRead], *, is_cpu: bool
) -> str | None:
    if len({d.index for d in memory_reads}) != 1:
        return "The kernel reads the reduction at several indices, and each would repeat the reduction."
    index = memory_reads[0].index
    if memory_reads[0].is_masked:
        return "The kernel reads the reduction only under a condition (a mask)."
    if group.reduction_vars is not None:
        if not is_bijection(index, tensor_def.shape, group.outer_vars):
            return "The kernel's rows differ from the rows of the reduction."
        if not sizes_equal(product(v.size for v in group.reduction_vars), product(tensor_def.ranges)):
            return "The kernel's rows have another length than the rows of the reduction."
        return None
    used = used_vars(index)
    ordered = tuple(v for v in group.loop_vars if v in used)
    if not is_bijection(index, tensor_def.shape, ordered):
        return "The kernel does not read the results of the reduction row by row."
    unused = [v for v in group.loop_vars if v not in used]
    if unused and not sizes_equal(product(v.size for v in unused), product(tensor_def.ranges)):
        return "The kernel's rows have another length than the rows of the reduction."
    rows, total = static_product(v.size for v in ordered), static_product((group.numel,))
    is_large = total is not None and total >= LARGE_KERNEL_ELEMENTS
    if unused and is_large and rows is not None and rows < MIN_REDUCTION_ROWS:
        return f"There are only {rows} rows: one program per row would leave most of the GPU idle."
    length = static_product(v.size for v in unused) or 0
    is_long = not is_cpu and length > MAX_STRIDED_ROW
    if is_long and _reads_rows(tensor_def) and (group.loop_vars[-1] in used or _reads_across(group, used)):
        return "The kernel's rows are strided in memory, unlike those of the reduction."
    return None


def _why_not_fusible_scan(
    tensor_def: TensorDef, group: FusionGroup, memory_reads: list[MemoryRead], *, is_cpu: bool
) -> str | None:
    index = memory_reads[0].index
    axis = axis_variable(tensor_def, index)
    if (
        len({d.index for d in memory_reads}) != 1
        or memory_reads[0].is_masked
        or not is_bijection(index, tensor_def.shape, group.loop_vars)
        or axis is None
    ):
        return "The kernel does not read the result of the scan in order."
    if group.reduction_vars is not None and group.reduction_vars != (axis,):
        return "The kernel's rows are not along the dimension of the scan."
    return SCAN_IS_SCALAR if is_cpu and scans_rows(tensor_def) and has_costly_op(group.builder) else None


def why_fused(tensor_def: TensorDef, is_stored: bool) -> str:
    """Return the reason why a kernel that reads a definition computes it."""
    if tensor_def.kind == "reduction":
        return "The kernel has the same rows: it reduces a row and continues with that row before the next one."
    if is_stored:
        return "The kernel visits each of its elements once: it computes, uses and stores the element."
    return "Only this kernel reads it. Each element is computed where it is used and never written to memory."


def _reads_rows(reduction: TensorDef) -> bool:
    """Return True if adjacent elements of a reduced row are adjacent in memory."""
    return any(
        static_size(stride) == 1 and static_size(read.source.shape[d]) != 1 and read.index[d].variables() - outer
        for outer in [frozenset(LoopVar(f"i{d}", n) for d, n in enumerate(reduction.loop_ranges))]
        for read in build_unfused(reduction).memory_reads
        for d, stride in enumerate(read.source.stride)
    )


def _reads_across(group: FusionGroup, row: frozenset[LoopVar]) -> bool:
    """Return True if a large read of a kernel has adjacent elements in different rows."""
    builder = LoopBuilder(set().union(*map(fusible_sources, group.reads)))
    for source, reads in group.reads.items():
        for read in reads:
            builder.load(source, read.index)
    return any(
        not adjacent_variables(flatten(read.index, read.source.stride)).isdisjoint(row)
        for read in builder.memory_reads
        if not is_negligible_size(product(read.source.shape), group.numel)
    )


def _why_not_recomputed(
    tensor_def: TensorDef, group: FusionGroup, memory_reads: list[MemoryRead], repeats: float | None = None
) -> str | None:
    probe = build_unfused(tensor_def)
    cost = sum(op.cost for op in probe.ops)
    reads = len(probe.memory_reads)
    if reads == 0 and cost <= MAX_RECOMPUTE_COST:
        return None
    index_count = len({d.index for d in memory_reads})
    total, stored = static_product((group.numel,)), static_product(tensor_def.shape)
    if total is None or stored is None:
        return (
            None
            if cost <= MAX_RECOMPUTE_COST and index_count == 1
            else "It would be recomputed for each element that reads it; the number depends on the sizes."
        )
    factor = index_count * total / max(stored, 1) if repeats is None else repeats
    if factor <= 1:
        return None
    if (cost * factor <= MAX_REPEATED_COST and reads * factor <= MAX_REPEATED_READS) or (
        cost <= MAX_RECOMPUTE_COST and reads <= MAX_READS_IF_CHEAP and index_count == 1
    ):
        return None
    return f"It would be recomputed {factor:.0f} times; to store it once is cheaper."


def _why_stored_once(tensor_def: TensorDef, group: FusionGroup) -> str | None:
    """Return why a large kernel loads a repeated value instead of its operands.

    A value of each row is computed once: the operands may be reductions of the row.
    """
    total, own = static_product((group.numel,)), static_product(tensor_def.shape)
    if total is None or own is None or total < MIN_REPEATING_ELEMENTS or own < MIN_REPEATED_ELEMENTS:
        return None
    reduced = set(group.reduction_vars or group.loop_vars)
    if not any(used_vars(read.index) & reduced for read in group.reads_of(tensor_def)):
        return None
    sources = [s for s in build_unfused(tensor_def).read_tensors.values() if sizes_equal(product(s.shape), own)]
    if own * SPARSE_READ_RATIO > total or len(sources) < 2:
        return None
    return f"It would be recomputed {total // own} times from {len(sources)} tensors of its size."
