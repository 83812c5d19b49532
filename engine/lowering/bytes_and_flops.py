"""Bytes moved and FLOPs of a loop kernel."""

from __future__ import annotations

from collections.abc import Iterable

import sympy

from engine.ir.kernels.lowered_program import Buffer
from engine.ir.loop_ir.index_expr import IndexExpr, Size, as_size, is_nonnegative, product
from engine.ir.loop_ir.ops import VARIES_WITH_X, VARIES_WITH_XR, WRITE_OPS, LoopIROp, R, X


def bytes_moved(ops: tuple[LoopIROp, ...], buffers: dict[str, Buffer], x: Size, r: Size) -> Size:
    """Count the bytes that a kernel reads and writes: an expression if sizes are symbolic.

    Several reads of one buffer count together, at most its whole size.
    """
    touched: dict[tuple[str, bool], Size] = {}
    for op in ops:
        if op.index is None or (op.name != "load" and op.name not in WRITE_OPS):
            continue
        key = (op.buffer, op.name in WRITE_OPS)
        touched[key] = touched.get(key, 0) + _distinct_positions(op.index, x, r, op.loops)
    return total(
        _smaller(product(buffers[name].shape), count) * buffers[name].dtype.itemsize
        for (name, _), count in touched.items()
    )


def flops(ops: tuple[LoopIROp, ...], x: Size, r: Size) -> Size:
    """Count arithmetic ops, each weighted by its rough cost.

    An expression if sizes are symbolic.
    """
    costs = {frozenset[str](): 0, VARIES_WITH_X: 0, frozenset((R,)): 0, VARIES_WITH_XR: 0}
    for op in ops:
        space = op.args[0].loops | {R} if op.name == "reduce" else op.loops
        costs[frozenset(space & {X, R})] += op.cost
    once, with_x, with_r, with_both = costs.values()
    return total([once, with_x * x, with_r * r, product((with_both, x, r))])


def total(counts: Iterable[Size]) -> Size:
    """Return the sum of counts, an int if it is known."""
    return as_size(sum(counts))


def _distinct_positions(index: IndexExpr, x: Size, r: Size, space: frozenset[str]) -> Size:
    """Return the number of distinct positions that an index takes."""
    limit = product(((x if X in space else 1), (r if R in space else 1)))
    counts = [atom.count() for atom in index.terms]
    return limit if None in counts else _smaller(limit, product(count for count in counts if count is not None))


def _smaller(a: Size, b: Size) -> Size:
    """Return the smaller of two sizes, ``Min`` of both if no value of the symbols decides it."""
    if is_nonnegative(b - a):
        return a
    return b if is_nonnegative(a - b) else sympy.Min(a, b, evaluate=False)
