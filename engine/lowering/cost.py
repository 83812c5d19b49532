"""Counts what a kernel moves and computes, from its loops."""

from __future__ import annotations

from engine.ir.index import Index, Size, atom_size
from engine.ir.kernel import Buffer
from engine.ir.loops import INNER, OUTER, WRITES, Op, R, X


def bytes_moved(ops: tuple[Op, ...], buffers: dict[str, Buffer], x: Size, r: Size) -> int | None:
    """Bytes read and written at least once each, None for symbolic sizes. A buffer read in several ways counts once, at most its whole size."""
    touched: dict[tuple[str, bool], int] = {}
    for op in ops:
        if op.index is None or (op.name != "load" and op.name not in WRITES):
            continue
        buffer = buffers[op.buffer]
        whole = _count(buffer.shape)
        reached = _reached(op.index, x, r, op.space)
        if whole is None or reached is None:
            return None
        key = (op.buffer, op.name in WRITES)
        touched[key] = min(whole, touched.get(key, 0) + reached)
    return sum(count * buffers[name].dtype.itemsize for (name, _), count in touched.items())


def flops(ops: tuple[Op, ...], x: Size, r: Size) -> int | None:
    """Arithmetic operations, each weighted with its rough cost, None for symbolic sizes."""
    if not isinstance(x, int) or not isinstance(r, int):
        return None
    runs = {frozenset(): 1, OUTER: x, frozenset((R,)): r, INNER: x * r}
    total = 0
    for op in ops:
        space = op.args[0].space | {R} if op.name == "reduce" else op.space
        total += op.cost * runs[frozenset(space & {X, R})]
    return total


def _count(sizes: tuple[Size, ...]) -> int | None:
    total = 1
    for size in sizes:
        if not isinstance(size, int):
            return None
        total *= size
    return total


def _reached(index: Index, x: Size, r: Size, space: frozenset[str]) -> int | None:
    """How many different positions an index takes."""
    limit = _count(((x if X in space else 1), (r if R in space else 1)))
    product = 1
    for atom in index.terms:
        size = atom_size(atom)
        if not isinstance(size, int):
            return limit
        product *= size
    return None if limit is None else min(product, limit)
