"""Rewrites the calls of a code object so that each callable goes through the dispatcher.

Frames that Python runs can then still call compiled functions.
"""

from __future__ import annotations

import dis
from collections.abc import Callable
from types import CodeType
from typing import Any

from bytecode import Instr

from engine.bytecode.calling_frames import is_calling_frame
from engine.bytecode.decode import DecodedCode, DecodedInstruction, ExceptionHandler, decode
from engine.bytecode.editable_instructions import EditableItem, editable_bytecode, editable_instructions
from engine.bytecode.opcodes import RULES

NullStack = tuple[bool, ...]
"""For each stack entry, True if it is NULL."""
_CALLS = frozenset(("CALL", "CALL_KW", "CALL_FUNCTION_EX"))
_ENDS = frozenset(("RETURN_VALUE", "RETURN_CONST", "RAISE_VARARGS", "RERAISE"))
_ALWAYS_JUMP = frozenset(("JUMP_FORWARD", "JUMP_BACKWARD", "JUMP_BACKWARD_NO_INTERRUPT"))
_NULL_AND_VALUE = (False, True) if RULES.null_above_callable else (True, False)


def intercept_calls(code: CodeType, callee: Callable[[Any], Any]) -> CodeType:
    """Return ``code`` with each call ``f(...)`` replaced by ``callee(f)(...)``.

    Lines, columns and exception handlers do not change. Code that sets the recursion limit is returned unchanged:
    it may leave no room for additional calls. So is the code of a ``make_calling_frame`` function, whose call must
    reach the callable itself.
    """
    if "setrecursionlimit" in code.co_names or is_calling_frame(code):
        return code
    source = editable_bytecode(code)
    positions = _callable_depths(decode(code))
    routed: list[EditableItem] = []
    pending: list[EditableItem] = []
    for item, n in editable_instructions(code):
        if not isinstance(item, Instr):
            routed.append(item)
            continue
        # KW_NAMES and PRECALL belong to the call that follows: insert before them.
        if item.name in ("KW_NAMES", "PRECALL"):
            pending.append(item)
            continue
        if n in positions:
            routed.extend(_pass_through_callee(callee, positions[n], item))
        routed.extend(pending)
        pending.clear()
        routed.extend(_expand_method_load(item))
    source[:] = routed
    # Do not recompute depths: a resume function starts in the middle of a block. The inserted code needs two more slots.
    return source.to_code(stacksize=code.co_stacksize + 2, compute_exception_stack_depths=False)


def _loads_method(name: str, arg: Any) -> bool:
    """Return True for an instruction that pushes (method, self) or (NULL, attribute).

    Which of the two is known only at run time.
    """
    if name == "LOAD_METHOD":
        return True
    return RULES.load_attr_has_flag and name in ("LOAD_ATTR", "LOAD_SUPER_ATTR") and bool(arg)


def _expand_method_load(item: Instr) -> list[EditableItem]:
    """Replace a method load by instructions that always push (NULL, attribute)."""
    first = item.arg[0] if isinstance(item.arg, tuple) and item.arg else item.name == "LOAD_METHOD"
    if not _loads_method(item.name, first):
        return [item]
    if item.name == "LOAD_METHOD":
        load = Instr("LOAD_ATTR", item.arg, location=item.location)
    else:
        assert isinstance(item.arg, tuple)
        load = Instr(item.name, (False, *item.arg[1:]), location=item.location)
    null = Instr("PUSH_NULL", location=item.location)
    return [load, null] if RULES.null_above_callable else [load, null, Instr("SWAP", 2, location=item.location)]


def _pass_through_callee(callee: Callable[[Any], Any], position: int, call: Instr) -> list[EditableItem]:
    """Swap the callable at depth ``position`` to the top, pass it to ``callee``, swap back."""
    swap = [Instr("SWAP", position, location=call.location)] if position > 1 else []
    replace_callable = [
        Instr("LOAD_CONST", callee, location=call.location),
        Instr("SWAP", 2, location=call.location),
        # A non-NULL entry beside a callable becomes its first argument.
        *([Instr(RULES.call_prefix, 0, location=call.location)] if RULES.call_prefix else []),
        Instr("CALL", 0, location=call.location),
    ]
    return [*swap, *replace_callable, *swap]


def _callable_depths(decoded: DecodedCode) -> dict[int, int]:
    """Return the depth of the callable for each reachable call, by index (1: top of stack)."""
    depths: dict[int, int] = {}
    visited: set[int] = set()
    todo: list[tuple[int, NullStack]] = [(0, ())]
    while todo:
        n, stack = todo.pop()
        while n < len(decoded.ops) and n not in visited:
            visited.add(n)
            op, handler = decoded.ops[n], decoded.handlers[n]
            n += 1
            if handler is not None:
                todo.append((handler.target, _stack_at_handler(handler, stack)))
            if op.opname in _CALLS:
                depths[op.index] = _callable_depth(op, stack)
            if op.target >= 0:
                todo.append((op.target, _stack_after(op, stack, jump=True)))
            if op.opname in _ENDS or op.opname in _ALWAYS_JUMP:
                break
            stack = _stack_after(op, stack, jump=False)
    return depths


def _stack_at_handler(handler: ExceptionHandler, stack: NullStack) -> NullStack:
    return (*stack[: handler.depth], *(False,) * (2 if handler.pushes_lasti else 1))


def _stack_after(op: DecodedInstruction, stack: NullStack, *, jump: bool) -> NullStack:
    """Return, for each stack entry after an instruction, True if it is a call's NULL."""
    if op.opname == "PUSH_NULL":
        return (*stack, True)
    if op.opname == "LOAD_GLOBAL" and op.arg & 1:
        return (*stack, *_NULL_AND_VALUE)
    if op.opname == "LOAD_SUPER_ATTR":
        return (*stack[:-3], *(_NULL_AND_VALUE if op.arg & 1 else (False,)))
    if _loads_method(op.opname, op.arg & 1):
        return (*stack[:-1], *_NULL_AND_VALUE)
    if op.opname == "SWAP":
        low = len(stack) - op.arg
        return (*stack[:low], stack[-1], *stack[low + 1 : -1], stack[low])
    if op.opname == "COPY":
        return (*stack, stack[-op.arg])
    if op.opname == "PRECALL":  # its effect is counted at the CALL that follows
        return stack
    if op.opname == "RETURN_GENERATOR":
        return (*stack, False)
    effect = -(op.arg + 1) if op.opname == "CALL" else _stack_effect(op, jump)
    if effect >= 0:
        return (*stack, *(False,) * effect)
    # If a call shrinks the stack, its result is on top, possibly in the slot of a NULL.
    remaining = stack[:effect]
    return (*remaining[:-1], False) if op.opname in _CALLS else remaining


def _stack_effect(op: DecodedInstruction, jump: bool) -> int:
    opcode = dis.opmap[op.opname]
    return dis.stack_effect(opcode, op.arg if opcode >= dis.HAVE_ARGUMENT else None, jump=jump)


def _callable_depth(op: DecodedInstruction, stack: NullStack) -> int:
    if op.opname == "CALL_FUNCTION_EX":
        above = 1 if RULES.mapping_is_optional else op.arg & 1
        return (3 if RULES.null_above_callable else 2) + above
    if RULES.null_above_callable:
        return op.arg + (3 if op.opname == "CALL_KW" else 2)
    under = op.arg + 2
    return under - 1 if stack[-under] else under
