"""Bytes moved and FLOPs of a loop kernel."""

from __future__ import annotations

from engine.ir.kernels.lowered_program import Buffer
from engine.ir.loop_ir.index_expr import IndexExpr, Size
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
        whole = _static_numel(buffer.shape)
        reached = _distinct_positions(op.index, x, r, op.loops)
        if whole is None or reached is None:
            return None
        key = (op.buffer, op.name in WRITE_OPS)
        touched[key] = min(whole, touched.get(key, 0) + reached)
    return sum(count * buffers[name].dtype.itemsize for (name, _), count in touched.items())


def flops(ops: tuple[LoopIROp, ...], x: Size, r: Size) -> int | None:
    """Count arithmetic ops, each weighted by its rough cost; None for symbolic sizes."""
    if not isinstance(x, int) or not isinstance(r, int):
        return None
    runs = {frozenset(): 1, VARIES_WITH_X: x, frozenset((R,)): r, VARIES_WITH_XR: x * r}
    total = 0
    for op in ops:
        space = op.args[0].loops | {R} if op.name == "reduce" else op.loops
        total += op.cost * runs[frozenset(space & {X, R})]
    return total


def _static_numel(sizes: tuple[Size, ...]) -> int | None:
    total = 1
    for size in sizes:
        if not isinstance(size, int):
            return None
        total *= size
    return total


def _distinct_positions(index: IndexExpr, x: Size, r: Size, space: frozenset[str]) -> int | None:
    """Return the number of distinct positions that an index takes, None if symbolic."""
    limit = _static_numel(((x if X in space else 1), (r if R in space else 1)))
    product = 1
    for atom in index.terms:
        size = atom.count()
        if not isinstance(size, int):
            return limit
        product *= size
    return None if limit is None else min(product, limit)
