"""What a kernel's operations need of each other: what is alive, who uses what, and in which run over a row each can be computed."""

from __future__ import annotations

from engine.ir.loop_ir.ops import WRITE_OPS, LoopIROp


def live_ops(ops: tuple[LoopIROp, ...]) -> list[LoopIROp]:
    """Operations that a store depends on, in order, and the checks of indices among them."""
    needed = transitive_inputs([op for op in ops if op.name in WRITE_OPS], ops)
    checks = [op for op in ops if op.name == "check" and op.args[0].number in needed]
    needed |= transitive_inputs(checks, ops)
    return [op for op in ops if op.number in needed]


def transitive_inputs(roots: list[LoopIROp], ops: tuple[LoopIROp, ...], *, in_one_loop: bool = False) -> set[int]:
    """What the roots need; ``in_one_loop`` without what reductions and products that are over needed."""
    seen: set[int] = set()
    stack = list(roots)
    while stack:
        op = stack.pop()
        if op.number in seen:
            continue
        seen.add(op.number)
        if not (in_one_loop and op.name in ("reduce", "dot")):
            stack.extend(op_inputs(op, ops))
    return seen


def op_inputs(op: LoopIROp, ops: tuple[LoopIROp, ...]) -> list[LoopIROp]:
    """Operands, the mask, and what its place in memory is computed from."""
    found = list(op.args)
    if op.mask is not None:
        found.append(op.mask)
    if op.index is not None:
        found.extend(ops[number] for number in op.index.indirect_ops())
    return found


def users_of(ops: list[LoopIROp]) -> dict[int, list[LoopIROp]]:
    """The operations that have each, by number, as an operand."""
    found: dict[int, list[LoopIROp]] = {}
    for op in ops:
        for arg in op.args:
            found.setdefault(arg.number, []).append(op)
    return found


def loop_levels(ops: tuple[LoopIROp, ...], online: set[int]) -> dict[int, int]:
    """How many runs over the inner loop must be over before an operation can be computed."""
    found: dict[int, int] = {}
    for op in ops:
        below = max((found[n.number] for n in op_inputs(op, ops)), default=0)
        found[op.number] = below + 1 if op.name == "reduce" and op.number not in online else below
    return found
