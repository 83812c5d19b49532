"""Handlers of jumps and loops."""

from __future__ import annotations

from engine.bytecode.opcodes import index_after_loop
from engine.ir.node_values import tensors_in
from engine.options import config
from engine.trace.annotations import DecodedInstruction, Frame, Tracer
from engine.trace.exc import SkipFrame, Unsupported
from engine.trace.opcode_registry import handle_by_value, handles
from engine.trace.state import LoopPasses
from engine.trace.variables.base import ConstantVariable, Variable, is_none, realize
from engine.trace.variables.tensors.tensor import TensorVariable
from engine.trace.variables.torch_api.symbolic_shape_functions import assume_of_number


@handles("JUMP_FORWARD", "JUMP_BACKWARD", "JUMP_BACKWARD_NO_INTERRUPT")
def _jump(tx: Tracer, frame: Frame, op: DecodedInstruction) -> None:
    frame.next_index = op.target


_IF_TRUE = ("POP_JUMP_FORWARD_IF_TRUE", "POP_JUMP_BACKWARD_IF_TRUE", "POP_JUMP_IF_TRUE")
_IF_FALSE = ("POP_JUMP_FORWARD_IF_FALSE", "POP_JUMP_BACKWARD_IF_FALSE", "POP_JUMP_IF_FALSE")


@handles(*_IF_TRUE, *_IF_FALSE)
def _jump_if(tx: Tracer, frame: Frame, op: DecodedInstruction) -> None:
    condition = realize(tx, frame.stack.pop())
    if _branch_condition(tx, frame, condition, op, frame.next_index) == (op.opname in _IF_TRUE):
        frame.next_index = op.target


@handles("TO_BOOL")
def _to_bool(tx: Tracer, frame: Frame, op: DecodedInstruction) -> None:
    """Evaluate the boolean on which the next instruction branches (Python 3.13 and later)."""
    value = realize(tx, frame.stack.pop())
    following = frame.decoded.ops[frame.next_index]
    if following.opname == "UNARY_NOT":  # It asks for the boolean itself: a symbolic one stays in the graph.
        frame.push(value)
        return
    is_branch = following.opname in (*_IF_TRUE, *_IF_FALSE)
    next_index = frame.next_index + 1
    truth = _branch_condition(tx, frame, value, following, next_index) if is_branch else value.is_truthy(tx)
    frame.push(ConstantVariable(truth))


def _branch_condition(tx: Tracer, frame: Frame, value: Variable, jump: DecodedInstruction, next_index: int) -> bool:
    """Return the boolean on which ``jump`` branches; without the jump, ``next_index`` follows.

    For a condition on a tensor or its values, if one branch can only raise, assume the other one: generated code
    checks the condition.
    """
    if tx.in_subgraph() or not (value.is_symbolic or isinstance(value, TensorVariable)):
        return value.is_truthy(tx)
    target_raises, next_raises = _only_raises(frame, jump.target), _only_raises(frame, next_index)
    assumed_truth = next_raises == (jump.opname in _IF_TRUE)
    if target_raises == next_raises:
        return value.is_truthy(tx)
    if isinstance(value, TensorVariable) and value.fake.numel() == 1 and not value.fake.is_meta:
        tx.fallback.assume_condition(value.node(tx), truth=assumed_truth)
        return assumed_truth
    try:
        return value.is_truthy(tx)
    except Unsupported as reason:
        if not value.is_symbolic or reason.kind not in ("tensor-jump", "size-branch") or _uses_accelerator(tx):
            raise
        assume_of_number(tx, value, truth=assumed_truth)
        return assumed_truth


def _uses_accelerator(tx: Tracer) -> bool:
    """Return True if kernels of a GPU may fail for good before a condition is checked."""
    return any(t.device.type != "cpu" for i in tx.graph.inputs for t in tensors_in(i.fake))


_MAX_LOOKAHEAD = 120
_LOOKAHEAD_STOPS = ("RETURN", "YIELD", "FOR_ITER", "RERAISE")


def _only_raises(frame: Frame, start: int) -> bool:
    """Return True if the instructions from ``start`` lead to a ``raise`` without any branch."""
    for op in frame.decoded.ops[start : start + _MAX_LOOKAHEAD]:
        if op.opname == "RAISE_VARARGS":
            return True
        if op.target >= 0 or op.opname.startswith(_LOOKAHEAD_STOPS):
            return False
    return False


_IF_NONE = ("POP_JUMP_FORWARD_IF_NONE", "POP_JUMP_BACKWARD_IF_NONE", "POP_JUMP_IF_NONE")


@handles(*_IF_NONE, "POP_JUMP_FORWARD_IF_NOT_NONE", "POP_JUMP_BACKWARD_IF_NOT_NONE", "POP_JUMP_IF_NOT_NONE")
def _jump_if_none(tx: Tracer, frame: Frame, op: DecodedInstruction) -> None:
    if is_none(realize(tx, frame.stack.pop())) == (op.opname in _IF_NONE):
        frame.next_index = op.target


@handles("JUMP_IF_TRUE_OR_POP", "JUMP_IF_FALSE_OR_POP")
def _jump_or_pop(tx: Tracer, frame: Frame, op: DecodedInstruction) -> None:
    if realize(tx, frame.stack[-1]).is_truthy(tx) == (op.opname == "JUMP_IF_TRUE_OR_POP"):
        frame.next_index = op.target
    else:
        frame.stack.pop()


handle_by_value("GET_ITER GET_YIELD_FROM_ITER", 1, lambda tx, op, of: realize(tx, realize(tx, of).get_iterator(tx)))


@handles("FOR_ITER")
def _for_iter(tx: Tracer, frame: Frame, op: DecodedInstruction) -> None:
    iterator = realize(tx, frame.stack[-1])
    item = iterator.next_item(tx)
    if item is not None:
        _stop_in_long_loop(tx, frame, op, iterator)
        frame.push(item)
        return
    tx.instruction_counter.loops.pop((id(frame), op.index), None)
    frame.stack.pop()
    frame.next_index = index_after_loop(op.target)


_JUDGED_PASS = 16
"""Pass of a loop in which its length is estimated."""

_OPERATION_COST = 20
"""Instructions that take about as long as tracing and compiling one operation."""


_COMPREHENSIONS = ("<listcomp>", "<setcomp>", "<dictcomp>")
"""Names of the functions that comprehensions are before Python 3.12."""


def _stop_in_long_loop(tx: Tracer, frame: Frame, op: DecodedInstruction, iterator: Variable) -> None:
    """Raise if the remaining passes of a loop will exceed the instruction budget.

    Only a loop is judged whose number of items is known and whose body cannot leave it.

    Raises:
        SkipFrame: the loop is one of the compiled function, or a comprehension in it.
        Unsupported: the loop is one of a function that it calls; Python runs the call.
    """
    counter = tx.instruction_counter
    key = (id(frame), op.index)
    loop = counter.loops.get(key)
    if loop is None or loop.iterator_id != id(iterator):
        loop = counter.loops[key] = LoopPasses(id(iterator), counter.instruction_count, tx.graph.op_count)
    loop.passes += 1
    if loop.passes != _JUDGED_PASS:
        return
    instructions = counter.instruction_count - loop.instructions
    cost = instructions + _OPERATION_COST * (tx.graph.op_count - loop.operations)
    if cost // (_JUDGED_PASS - 1) * iterator.known_items_left <= config.instruction_budget or _may_leave(frame, op):
        return
    what = f"a loop still has {iterator.known_items_left:,} passes, too many to unroll"
    if all(caller.code.co_name in _COMPREHENSIONS for caller in tx.call_stack.frames[1:]):
        raise SkipFrame("budget", what, stack=tx.user_stack())
    raise Unsupported("budget", what)


def _may_leave(frame: Frame, op: DecodedInstruction) -> bool:
    """Return True if the body of a loop may end the loop before its last item."""
    body = frame.decoded.ops[op.index + 1 : op.target]
    return any(o.opname.startswith("RETURN") or o.target >= op.target for o in body)
