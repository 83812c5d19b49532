"""Conditions on a loop variable, such as which part of a concatenation an index is in.

A loop is divided into pieces in which these conditions have one value: an untaken branch is then not computed.
"""

from __future__ import annotations

import operator
from bisect import bisect_left
from collections.abc import Callable, Iterable
from typing import Any

import torch

from engine.ir.loop_ir.index_expr import LoopVar, constant
from engine.ir.loop_ir.ops import LoopIROp
from engine.ir.static_sizes import static_size

MAX_OPS_IN_PIECES = 512
"""Most ops of all pieces of a loop together; a loop with more is not divided."""

_ORDERS = ("lt", "le", "gt", "ge")
_OPERATORS: dict[str, Callable[..., Any]] = {
    **{name: getattr(operator, name) for name in ("eq", "ne", *_ORDERS)},
    "and": operator.and_,
    "or": operator.or_,
}


def value_at(op: LoopIROp, var: LoopVar, position: int) -> Any:
    """Return the value of an op in one iteration of a loop; None if it depends on more."""
    if op.name == "constant":
        return op.value
    if op.name == "index" and op.index is not None:
        index = op.index.replace({var: constant(position)})
        return None if index.terms else static_size(index.const)
    if op.name == "to" and op.dtype in (torch.int32, torch.int64):
        return value_at(op.args[0], var, position)
    arguments = [value_at(arg, var, position) for arg in op.args]
    evaluate = _OPERATORS.get(op.name)
    return None if evaluate is None or None in arguments else evaluate(*arguments)


def condition_in(op: LoopIROp, var: LoopVar, start: int, stop: int) -> bool | None:
    """Return the value of a condition that it has from ``start`` to ``stop``; None if unknown."""
    if op.name in ("and", "or"):
        values = [condition_in(arg, var, start, stop) for arg in op.args]
        decisive = op.name == "or"
        return decisive if decisive in values else None if None in values else not decisive
    if not _is_monotonic(op, var):
        return None
    first, last = value_at(op, var, start), value_at(op, var, stop - 1)
    return first if first == last else None


def pieces_of(ops: Iterable[LoopIROp], var: LoopVar, least: int) -> list[tuple[int, int]]:
    """Divide a loop where conditions on its variable change.

    Pieces have ``least`` iterations, except for the last. Where two changes are closer, the condition changes within a piece.
    """
    size = static_size(var.size)
    assert size is not None
    cuts = {size}
    for op in ops:
        if _is_monotonic(op, var):
            cuts.add(_first_change(op, var, size))
    pieces, start = list[tuple[int, int]](), 0
    for cut in sorted(cuts):
        if cut > start:
            pieces.append((start, min(max(cut, start + least), size)))
            start = pieces[-1][1]
    return pieces


def _first_change(op: LoopIROp, var: LoopVar, size: int) -> int:
    """Return the first iteration in which a condition differs from that in the first one."""
    first = value_at(op, var, 0)
    return bisect_left(range(size), True, key=lambda n: value_at(op, var, n) != first)


def iterations_under(op: LoopIROp, var: LoopVar, pieces: Iterable[tuple[int, int]]) -> int | None:
    """Return in how many iterations a condition is true; None if it changes within a piece."""
    values = [(stop - start, condition_in(op, var, start, stop)) for start, stop in pieces]
    return None if any(value is None for _, value in values) else sum(length for length, value in values if value)


def _is_monotonic(op: LoopIROp, var: LoopVar) -> bool:
    """Return True if an op compares a multiple of a variable with a constant: it changes once."""
    if op.name not in _ORDERS:
        return False
    sides = [a.args[0] if a.name == "to" and a.dtype in (torch.int32, torch.int64) else a for a in op.args]
    indices = [a.index for a in sides if a.name == "index" and a.index is not None]
    is_compared = len(indices) == 1 and any(a.name == "constant" for a in sides)
    return is_compared and [atom.as_variable() for atom in indices[0].terms] == [var]
