"""Dependences between the ops of a kernel: live ops, users, loop levels."""

from __future__ import annotations

from collections.abc import Collection

from engine.group_pairs import group_pairs
from engine.ir.loop_ir.ops import WRITE_OPS, LoopIROp
from engine.ir.reachable import reachable


def live_ops(ops: tuple[LoopIROp, ...], *, keeps_checks: bool = False) -> list[LoopIROp]:
    """Return the ops that a store depends on, in order, with the checks of their indices.

    ``keeps_checks``: with the checks of all indices, also where nothing is read with them.
    """
    needed = transitive_inputs([op for op in ops if op.name in WRITE_OPS], ops)
    checks = [op for op in ops if op.name == "check" and (keeps_checks or op.args[0].number in needed)]
    needed |= transitive_inputs(checks, ops)
    return [op for op in ops if op.number in needed]


def transitive_inputs(
    roots: list[LoopIROp], ops: tuple[LoopIROp, ...], *, in_one_loop: bool = False, stop_at: Collection[int] = ()
) -> set[int]:
    """Return the numbers of all ops that the roots depend on.

    ``in_one_loop``: stop at reductions and dot products, which earlier loops compute. ``stop_at``: numbers of ops to
    stop at.
    """

    def inputs_of(op: LoopIROp) -> list[LoopIROp]:
        is_end = op.number in stop_at or (in_one_loop and op.name in ("reduce", "dot"))
        return [] if is_end else op.inputs(ops)

    return {op.number for op in reachable(roots, inputs_of)}


def users_of(ops: list[LoopIROp]) -> dict[int, list[LoopIROp]]:
    """Map the number of each op to the ops that have it as an operand."""
    return group_pairs((arg.number, op) for op in ops for arg in op.args)


def loop_levels(ops: tuple[LoopIROp, ...], online: set[int]) -> dict[int, int]:
    """Return, for each op, the number of inner loops that must end before it."""
    levels: dict[int, int] = {}
    for op in ops:
        below = max((levels[n.number] for n in op.inputs(ops)), default=0)
        levels[op.number] = below + 1 if op.name == "reduce" and op.number not in online else below
    return levels
