"""Bytes moved and FLOPs of a loop kernel."""

from __future__ import annotations

from engine.ir.kernels.lowered_program import Buffer
from engine.ir.loop_ir.index_expr import IndexExpr, Size, static_product
from engine.ir.loop_ir.ops import VARIES_WITH_X, VARIES_WITH_XR, WRITE_OPS, LoopIROp, R, X


def bytes_moved(ops: tuple[LoopIROp, ...], buffers: dict[str, Buffer], x: Size, r: Size) -> int | None:
    """Count the bytes that a kernel reads and writes; None for symbolic sizes.

    Several reads of one buffer count together, at most its whole size.
    """
    touched: dict[tuple[str, bool], int] = {}
    for op in ops:
        if op.index is None or (op.name != "load" and op.name not in WRITE_OPS):
            continue
        buffer = buffers[op.buffer]
        whole = static_product(buffer.shape)
        reached = _distinct_positions(op.index, x, r, op.loops)
        if whole is None or reached is None:
            return None
        key = (op.buffer, op.name in WRITE_OPS)
        touched[key] = min(whole, touched.get(key, 0) + reached)
    return sum(count * buffers[name].dtype.itemsize for (name, _), count in touched.items())


def flops(ops: tuple[LoopIROp, ...], x: Size, r: Size) -> int | None:
    """Count arithmetic ops, each weighted by its rough cost; None for symbolic sizes."""
    rows, columns = static_product((x,)), static_product((r,))
    if rows is None or columns is None:
        return None
    runs = {frozenset(): 1, VARIES_WITH_X: rows, frozenset((R,)): columns, VARIES_WITH_XR: rows * columns}
    total = 0
    for op in ops:
        space = op.args[0].loops | {R} if op.name == "reduce" else op.loops
        total += op.cost * runs[frozenset(space & {X, R})]
    return total


def _distinct_positions(index: IndexExpr, x: Size, r: Size, space: frozenset[str]) -> int | None:
    """Return the number of distinct positions that an index takes, None if symbolic."""
    limit = static_product(((x if X in space else 1), (r if R in space else 1)))
    counts = [atom.count() for atom in index.terms]
    reached = static_product(count for count in counts if count is not None)
    if limit is None or reached is None or None in counts:
        return limit
    return min(reached, limit)
