"""Matches reductions that depend on another one, but can accumulate in the same loop.

Sums of exponentials relative to a running maximum (Milakov and Gimelshein, 2018), and squares around a running mean
(Welford, 1962).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from engine.ir.loop_ir.ops import LoopIROp, R


def match_online_softmax(ops: Iterable[LoopIROp]) -> dict[int, LoopIROp]:
    """Map the number of each ``sum(exp(v - max(v)))`` to the reduction ``max(v)``."""
    return _match_pairs(ops, _online_softmax_max)


def match_welford(ops: Iterable[LoopIROp]) -> dict[int, LoopIROp]:
    """Map the number of each ``sum((v - mean(v)) ** 2)`` to the reduction ``sum(v)``."""
    return _match_pairs(ops, _welford_sum)


def _match_pairs(ops: Iterable[LoopIROp], first_of: Callable[[LoopIROp], LoopIROp | None]) -> dict[int, LoopIROp]:
    pairs: dict[int, LoopIROp] = {}
    for op in ops:
        first = first_of(op) if op.name == "reduce" and op.value == "sum" else None
        if first is not None and first not in pairs.values():
            pairs[op.number] = first
    return pairs


def _online_softmax_max(op: LoopIROp) -> LoopIROp | None:
    if op.args[0].name != "exp":
        return None
    shifted = op.args[0].args[0]
    if shifted.name != "sub" or not shifted.dtype.is_floating_point:
        return None
    value, largest = shifted.args
    return largest if _is_reduction_of(largest, "max", value) else None


def _welford_sum(op: LoopIROp) -> LoopIROp | None:
    squared = op.args[0]
    if squared.name != "mul" or squared.args[0] is not squared.args[1]:
        return None
    shifted = squared.args[0]
    if shifted.name != "sub" or not shifted.dtype.is_floating_point:
        return None
    value, mean = shifted.args
    if mean.name != "div" or mean.args[1].loops:
        return None
    return mean.args[0] if _is_reduction_of(mean.args[0], "sum", value) else None


def _is_reduction_of(op: LoopIROp, kind: str, value: LoopIROp) -> bool:
    return op.name == "reduce" and op.value == kind and op.args[0] is value and R in value.loops
