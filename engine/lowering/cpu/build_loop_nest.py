"""Build the loop kernel of a fusion group for a CPU: a nest of few loops.

A loop variable is split where an index has its quotient or remainder, and two adjacent
variables are merged where every index treats them as one.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from engine.ir.kernels.lowered_program import Buffer
from engine.ir.loop_ir.builder import LoopBuilder
from engine.ir.loop_ir.index_expr import IndexExpr, LoopVar, as_size, exact_quotient, flatten, product, variable
from engine.ir.loop_ir.loop_kernel import LoopKernel, LoopNest
from engine.lowering.build_loop_kernel import depends_on_inner_loop, kernel_of_ops, needs_int64_index, ops_of_stores
from engine.lowering.fusion.fusion_group import FusionGroup

if TYPE_CHECKING:
    from engine.lowering.graph_lowering import GraphLowering

MAX_SPLITS = 6

Substitution = dict[LoopVar, IndexExpr]


def build_loop_nest(group: FusionGroup, id: str, walk: GraphLowering, buffers: Mapping[str, Buffer]) -> LoopKernel:
    """Build a kernel whose loops are a nest, from a fusion group."""
    outer, inner = group.outer_vars, group.reduction_vars or ()
    values: Substitution = {v: variable(v) for v in (*outer, *inner)}
    indices = _all_indices(group)
    outer, inner = _split(outer, inner, indices, values)
    outer, inner = _merge(outer, indices, values), _merge(inner, indices, values)
    x = LoopVar("x", product(v.size for v in outer))
    r = LoopVar("r", product(v.size for v in inner)) if inner else None
    is_wide = needs_int64_index(group, buffers, product(v.size for v in (*outer, *inner)))
    flat = group.reduction_index().replace(values)
    builder = LoopBuilder(group.members, frozenset(inner), flat, is_wide)
    ops = ops_of_stores(group, builder, values)
    if not depends_on_inner_loop(ops):
        inner, r = (), None  # A one-hot sum was folded to its single non-zero element.
    return kernel_of_ops(group, id, walk, buffers, ops, x, r, is_wide=is_wide, nest=LoopNest(outer, inner))


def _all_indices(group: FusionGroup) -> list[IndexExpr]:
    """Return the index of every memory access, and every index used as a value."""
    indices = [op.index for op in group.builder.ops if op.index is not None]
    for stored, index in group.stores.items():
        indices += index if stored.kind == "scatter" else [flatten(index, stored.stride)]
    return list(dict.fromkeys(indices))


def _split(
    outer: tuple[LoopVar, ...], inner: tuple[LoopVar, ...], indices: list[IndexExpr], values: Substitution
) -> tuple[tuple[LoopVar, ...], tuple[LoopVar, ...]]:
    """Split variables that an index divides, where the sizes are multiples."""
    for _ in range(MAX_SPLITS):
        division = _first_division(indices, values, (*outer, *inner))
        if division is None:
            break
        var, high, low = division
        by = {var: variable(high) * low.size + variable(low)}
        for old, index in values.items():
            values[old] = index.replace(by)
        outer, inner = (
            tuple(n for v in loops for n in ((high, low) if v == var else (v,))) for loops in (outer, inner)
        )
    return outer, inner


def _first_division(
    indices: list[IndexExpr], values: Substitution, loops: tuple[LoopVar, ...]
) -> tuple[LoopVar, LoopVar, LoopVar] | None:
    """Return a variable that some index divides, with its two parts, or None."""
    for index in indices:
        for atom in index.replace(values).terms:
            pair = atom.divided_variable()
            if pair is None or pair[0] not in loops:
                continue
            var, by = pair
            quotient = exact_quotient(var.size, by)
            if quotient is not None and quotient != 1 and by != 1:
                return var, LoopVar(f"{var.name}h", quotient), LoopVar(f"{var.name}l", by)
    return None


def _merge(loops: tuple[LoopVar, ...], indices: list[IndexExpr], values: Substitution) -> tuple[LoopVar, ...]:
    """Merge neighbors whose indices stay linear."""
    merged = [v for v in loops if v.size != 1]
    position = 0
    while position + 1 < len(merged):
        first, second = merged[position : position + 2]
        both = LoopVar(f"{first.name}{second.name}", as_size(first.size * second.size))
        by = {first: variable(both).div(second.size), second: variable(both).mod(second.size)}
        changed = {v: index.replace(by) for v, index in values.items()}
        if all(_is_linear(index.replace(changed), both) for index in indices):
            values.update(changed)
            merged[position : position + 2] = [both]
        else:
            position += 1
    return tuple(merged)


def _is_linear(index: IndexExpr, var: LoopVar) -> bool:
    """Return True if an index contains a variable only as a linear term."""
    return all(atom.as_variable() is not None or var not in atom.variables() for atom in index.terms)
