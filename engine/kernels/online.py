"""Finds sums of exponentials below a running largest value: such a sum is kept up while the largest is found, in one run over a row."""

from __future__ import annotations

from collections.abc import Iterable

from engine.ir.loops import Op, R


def sums_with_largest(ops: Iterable[Op]) -> dict[int, Op]:
    """For each reduction ``sum(exp(v - max(v)))`` by number, the reduction ``max(v)``."""
    found: dict[int, Op] = {}
    for op in ops:
        largest = _largest(op)
        if largest is not None and largest not in found.values():
            found[op.number] = largest
    return found


def _largest(op: Op) -> Op | None:
    if op.name != "reduce" or op.value != "sum" or op.args[0].name != "exp":
        return None
    shifted = op.args[0].args[0]
    if shifted.name != "sub" or not shifted.dtype.is_floating_point:
        return None
    value, largest = shifted.args
    is_its_own = largest.name == "reduce" and largest.value == "max" and largest.args[0] is value and R in value.space
    return largest if is_its_own else None
