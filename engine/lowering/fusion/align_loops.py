"""Relate the loops of two kernels, and loops to the elements that they read.

The scheduler fuses two kernels only if one's loop variables can be written with the other's. The functions here
find that mapping, split loops so that it exists, and say in which order loops visit a tensor.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping

from engine.ir.loop_ir.index_expr import (
    IndexExpr,
    LoopVar,
    Size,
    contiguous_strides,
    exact_quotient,
    flatten,
    is_bijection,
    product,
    sizes_equal,
    static_product,
    unflatten,
    variable,
)
from engine.ir.loop_ir.tensor_def import Coordinates, TensorDef
from engine.ir.static_sizes import static_size, static_sizes
from engine.lowering.fusion.fusion_cost import row_major_strides
from engine.lowering.fusion.fusion_group import FusionGroup

MIN_REDUCTION_ROWS = 64
"""Minimum number of rows of a large kernel that reduces each row in one program."""


MIN_READ_RATIO = 4
"""Fewest bytes of a row, per byte of its results, for which rows follow what they read."""


MAX_LOOP_SPLITS = 4
"""Maximum number of times that a reduction splits the loop variables of one kernel."""


def visits_each_element(tensor_def: TensorDef, index: Coordinates, variables: tuple[LoopVar, ...]) -> bool:
    """Return True if loops visit each element once, in the order of its shape or of memory."""
    if is_bijection(index, tensor_def.shape, variables):
        return True
    # No two elements share a position in memory.
    position = flatten(index, tensor_def.stride)
    return is_bijection((position,), (product(tensor_def.shape),), variables)


def used_vars(index: Coordinates) -> frozenset[LoopVar]:
    """Return the loop variables that an index contains."""
    return frozenset().union(*(i.variables() for i in index)) if index else frozenset()


def axis_variable(tensor_def: TensorDef, index: Coordinates) -> LoopVar | None:
    """Return the loop variable that visits the dimension of a scan, if one alone visits it."""
    atom = index[tensor_def.scan_axis].single_atom()
    var = None if atom is None else atom.as_variable()
    return var if var is not None and sizes_equal(var.size, tensor_def.shape[tensor_def.scan_axis]) else None


def add_reduction_vars(
    tensor_def: TensorDef, group: FusionGroup, index: Coordinates
) -> tuple[tuple[LoopVar, ...], tuple[LoopVar, ...]]:
    """Return ``(all, reduction)`` variables of a pointwise kernel that fuses a reduction.

    The kernel reads the reduction at ``index``. If it visits nothing else, it takes the reduction's order of rows, as
    the reduction reads more.
    """
    used = used_vars(index)
    unused = tuple(v for v in group.loop_vars if v not in used)
    if unused:
        return group.loop_vars, unused
    inner = tuple(LoopVar(f"r{k}", n) for k, n in enumerate(tensor_def.ranges) if n != 1)
    dims = memory_order(tensor_def)
    first = {v: position for position, d in reversed(list(enumerate(dims))) for v in index[d].variables()}
    return (*sorted(group.loop_vars, key=lambda v: first.get(v, 0)), *inner), inner


def split_loop_vars(tensor_def: TensorDef, group: FusionGroup) -> None:
    """Split loop variables where ``tensor_def`` is read at their quotient or remainder.

    Afterward the kernel reads ``tensor_def`` at an index of plain loop variables.
    """
    for _ in range(MAX_LOOP_SPLITS):
        atom = next(
            (c for d in group.reads_of(tensor_def) for c in map(_find_div_or_mod, d.index) if c is not None), None
        )
        if atom is None or atom[0] not in group.loop_vars:
            return
        var, by = atom
        quotient = exact_quotient(var.size, by)
        if quotient is None:
            return
        high, low = LoopVar(f"{var.name}h", quotient), LoopVar(f"{var.name}l", by)
        value = {var: variable(high) * by + variable(low)}

        parts = {var: (high, low)}
        group.loop_vars = _replace_vars(group.loop_vars, parts)
        if group.reduction_vars is not None:
            group.reduction_vars = _replace_vars(group.reduction_vars, parts)
        group.stores = {m: tuple(i.replace(value) for i in index) for m, index in group.stores.items()}
        group.analyze()


def _replace_vars(variables: tuple[LoopVar, ...], parts: Mapping[LoopVar, tuple[LoopVar, ...]]) -> tuple[LoopVar, ...]:
    """Replace loop variables by their parts; parts of size 1 are left out."""
    return tuple(part for v in variables for part in parts.get(v, (v,)) if part.size != 1)


def _find_div_or_mod(index: IndexExpr) -> tuple[LoopVar, Size] | None:
    """Return ``(v, k)`` if an index contains ``v // k`` or ``v % k``, else None."""
    variables = (atom.divided_variable() for atom in index.terms)
    return next((pair for pair in variables if pair is not None), None)


def memory_order(tensor_def: TensorDef) -> list[int]:
    """Return the dimensions by descending stride, without those of size 1."""
    dims = [d for d, n in enumerate(tensor_def.loop_ranges) if n != 1]
    strides = static_sizes(tensor_def.stride)
    if tensor_def.kind != "scatter" and strides is not None:
        return sorted(dims, key=lambda d: -strides[d])
    return dims


def follow_reads(group: FusionGroup) -> None:
    """Order a reduction's rows as its elements in memory, if they outweigh its results.

    The results may be in another order, such as those of a maximum over the height of a channels-last image.
    """
    inner = group.reduction_vars
    rows = group.outer_vars
    if inner is None or group.has_scan or len(rows) < 2 or any(stored.kind == "scatter" for stored in group.stores):
        return
    votes, beside = Counter[tuple[LoopVar, ...]](), 0
    accesses = [(source, read.index) for source, reads in group.reads.items() for read in reads]
    for source, index in (*accesses, *group.stores.items()):
        position = flatten(index, source.stride)
        if position.terms.keys() == {*rows, *inner}:
            votes[_rows_in_memory(rows, inner, position)] += source.dtype.itemsize
        elif position.terms.keys() >= {*rows}:
            beside += source.dtype.itemsize
    length, order = static_product(v.size for v in inner), max(votes, key=lambda o: (votes[o], o == rows), default=rows)
    if length is None or length * (votes[order] - votes[rows]) >= MIN_READ_RATIO * beside:
        group.loop_vars = (*order, *inner)


def _rows_in_memory(rows: tuple[LoopVar, ...], inner: tuple[LoopVar, ...], position: IndexExpr) -> tuple[LoopVar, ...]:
    """Return the rows by descending stride, unless adjacent elements are in one row.

    Symbolic strides come first.
    """
    order = sorted([*rows, *inner], key=lambda v: -(static_size(position.terms[v]) or math.inf))
    return rows if order[-1] in inner else tuple(v for v in order if v in rows)


def loop_mapping(first: FusionGroup, second: FusionGroup) -> dict[LoopVar, IndexExpr] | None:
    """Express the second kernel's variables by the first's; None if their loops differ.

    A kernel with a reduction must be the first: its loops may compute a kernel without one, not the reverse.
    """
    # The same loops in the same order, and the same of them reduced over if both kernels reduce.
    sizes = [v.size for v in first.loop_vars]
    if [v.size for v in second.loop_vars] == sizes and (
        first.reduction_vars is None
        or second.reduction_vars is None
        or _reduction_positions(first) == _reduction_positions(second)
    ):
        if first.reduction_vars is None and second.reduction_vars is not None:
            return None
        return dict(zip(second.loop_vars, (variable(v) for v in first.loop_vars), strict=True))
    # Two reductions with as many rows of the same length, of other dimensions: map rows to rows, columns to columns.
    if first.reduction_vars is not None and second.reduction_vars is not None:
        if not sizes_equal(product(v.size for v in first.outer_vars), product(v.size for v in second.outer_vars)):
            return None
        if not sizes_equal(
            product(v.size for v in first.reduction_vars), product(v.size for v in second.reduction_vars)
        ):
            return None
        return {
            **_flat_mapping(first.outer_vars, second.outer_vars),
            **_flat_mapping(first.reduction_vars, second.reduction_vars),
        }
    # Two pointwise kernels with as many iterations, of other dimensions: map the flat iteration number.
    if first.reduction_vars is None and second.reduction_vars is None and sizes_equal(first.numel, second.numel):
        return _flat_mapping(first.loop_vars, second.loop_vars)
    return None


def read_same_elements(
    first: FusionGroup, second: FusionGroup, shared: TensorDef, values: dict[LoopVar, IndexExpr]
) -> bool:
    """Return True if both kernels read a common element of ``shared`` in each iteration."""
    indices = {tuple(i.replace(values) for i in d.index) for d in second.reads_of(shared)}
    return bool(indices & {d.index for d in first.reads_of(shared)})


def element_mapping(first: FusionGroup, second: FusionGroup, shared: TensorDef) -> dict[LoopVar, IndexExpr] | None:
    """Express an elementwise kernel's variables by a reduction's; None if not possible.

    Each iteration of either reads one element of ``shared``, and the elementwise kernel in the order of memory.
    """
    if first.reduction_vars is None or second.reduction_vars is not None or first.has_scan or second.has_scan:
        return None
    rows, variables = static_product(v.size for v in first.outer_vars), [v for v in second.loop_vars if v.size != 1]
    if rows is None or rows < MIN_REDUCTION_ROWS:
        return None
    for read in second.reads_of(shared):
        memory = flatten(read.index, shared.stride)
        steps = static_sizes(memory.terms.get(v, 0) for v in variables)
        is_whole = is_bijection(read.index, shared.shape, second.loop_vars) and memory.terms.keys() == set(variables)
        if not is_whole or steps is None or list(steps) != sorted(steps, reverse=True):
            continue
        for other in first.reads_of(shared):
            if not visits_each_element(shared, other.index, first.loop_vars):
                continue
            for strides in (contiguous_strides(shared.shape), shared.stride):
                position, at = flatten(read.index, strides), flatten(other.index, strides)
                order = _outermost_first(variables, position)
                values = dict(zip(order, unflatten(at, tuple(v.size for v in order)), strict=True))
                values |= {v: IndexExpr() for v in second.loop_vars if v.size == 1}
                if position.replace(values) == at:
                    return values
    return None


def _outermost_first(variables: list[LoopVar], position: IndexExpr) -> list[LoopVar]:
    """Return variables by descending stride in a position; symbolic strides come last."""
    return sorted(variables, key=lambda v: -(static_size(position.terms.get(v, 0)) or 0))


def _reduction_positions(group: FusionGroup) -> list[bool]:
    return [v in (group.reduction_vars or ()) for v in group.loop_vars]


def _flat_mapping(first: tuple[LoopVar, ...], second: tuple[LoopVar, ...]) -> dict[LoopVar, IndexExpr]:
    flat = flatten([variable(v) for v in first], row_major_strides(first))
    return dict(zip(second, unflatten(flat, tuple(v.size for v in second)), strict=True))


def map_reduction_vars(group: FusionGroup, values: dict[LoopVar, IndexExpr]) -> tuple[LoopVar, ...] | None:
    """Return a kernel's reduction variables written with those of another kernel."""
    if group.reduction_vars is None:
        return None
    return tuple(next(iter(values[v].terms)) for v in group.reduction_vars)  # type: ignore[misc]
