"""Code for a frame that breaks: run one instruction in Python, then call resume functions."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator

from bytecode import Instr, Label

from engine.bytecode.editable_instructions import editable_instructions
from engine.bytecode.opcodes import EXIT_FROM_TOP, RULES, index_after_loop
from engine.frame_code.codegen_runtime.resume_calls import call_exit, load_special_method
from engine.trace.annotations import DecodedInstruction
from engine.trace.exc import Unsupported
from engine.trace.graph_breaks.resume_codegen import ResumeCodegen, ResumeTarget
from engine.trace.variables.base import NULL, Variable, reachable_variables

_CONDITIONAL_JUMPS: dict[str, bool] = {
    **dict.fromkeys("POP_JUMP_FORWARD_IF_FALSE POP_JUMP_BACKWARD_IF_FALSE POP_JUMP_IF_FALSE".split(), True),
    **dict.fromkeys("POP_JUMP_FORWARD_IF_TRUE POP_JUMP_BACKWARD_IF_TRUE POP_JUMP_IF_TRUE".split(), True),
    "JUMP_IF_TRUE_OR_POP": False,
    "JUMP_IF_FALSE_OR_POP": False,
}
"""Conditional jumps on a boolean; True if both paths pop the condition."""
_ITERATOR_CONSUMERS = frozenset(("LIST_EXTEND", "SET_UPDATE", "UNPACK_SEQUENCE", "UNPACK_EX", "CONTAINS_OP"))
"""Instructions that consume the iterator on top of the stack."""

_OPCODES_BY_STACK_EFFECT: dict[tuple[int, int], str] = {
    (0, 0): "DELETE_GLOBAL",
    (0, 1): "LOAD_BUILD_CLASS",
    (1, 0): "DELETE_ATTR",
    (1, 1): (
        "UNARY_NEGATIVE UNARY_POSITIVE UNARY_INVERT UNARY_NOT TO_BOOL GET_ITER LIST_TO_TUPLE FORMAT_SIMPLE "
        "CONVERT_VALUE"
    ),
    (1, 2): "IMPORT_FROM GET_LEN BEFORE_WITH",
    (2, 0): "DELETE_SUBSCR STORE_ATTR",
    (2, 1): "BINARY_OP BINARY_SUBSCR COMPARE_OP CONTAINS_OP IS_OP IMPORT_NAME FORMAT_WITH_SPEC BUILD_TEMPLATE",
    (2, 2): "CHECK_EXC_MATCH",
    (2, 3): "MATCH_KEYS",
    (3, 0): "STORE_SUBSCR",
    (3, 1): "BINARY_SLICE MATCH_CLASS",
    (4, 0): "STORE_SLICE",
}
"""Instructions that only use the top of the stack, by how many values they pop and push."""
_STACK_EFFECTS = {name: effect for effect, names in _OPCODES_BY_STACK_EFFECT.items() for name in names.split()}


def stack_effect(op: DecodedInstruction) -> tuple[int, int] | None:
    """Return how many values an instruction pops and pushes; None if it cannot run by itself."""
    effect = _STACK_EFFECTS.get(op.opname)
    if effect is not None:
        return effect
    match op.opname:
        case "BUILD_TUPLE" | "BUILD_LIST" | "BUILD_SET" | "BUILD_STRING" | "BUILD_SLICE":
            return op.arg, 1
        case "BUILD_MAP":
            return 2 * op.arg, 1
        case "BUILD_CONST_KEY_MAP":
            return op.arg + 1, 1
        case "UNPACK_SEQUENCE":
            return 1, op.arg
        case "UNPACK_EX":
            return 1, (op.arg & 0xFF) + 1 + (op.arg >> 8)
        case "BUILD_INTERPOLATION":
            return 2 + (op.arg & 1), 1
        case "FORMAT_VALUE":
            return (2 if op.arg & 4 else 1), 1
        case "LIST_EXTEND" | "SET_UPDATE" | "DICT_UPDATE" | "LIST_APPEND" | "SET_ADD":
            return op.arg + 1, op.arg
        case "MAP_ADD":
            return op.arg + 2, op.arg
        case "DICT_MERGE":
            return op.arg + 1, op.arg
    return None


class BreakCodegen(ResumeCodegen):
    """Emitter of the graph break at one instruction of a frame: Python runs this instruction."""

    def emit(self, emit_side_effects: Callable[[], None]) -> None:
        """Emit all code after the graph; ``emit_side_effects`` emits the side effects.

        Raises:
            Unsupported: Python cannot run this instruction by itself.
        """
        self.check_exc_stack()
        live_here = self.live_locals[self.op.index]
        loaded_later = [v for v in self.stack if v is not NULL]
        loaded_later += [v for n, v in self.frame.locals.items() if n in live_here]
        dated = [v for v in reachable_variables(loaded_later) if v.reconstruct_before_break]
        # Python closes a suspended generator also if the broken instruction raises. Its local must exist by then.
        self.reconstruct([*dated, *(v for v in self.frame.locals.values() if v.holds_suspended_generator)])
        self.cg.store_root_cells(self.frame)
        _EMITTERS.get(self.op.opname, BreakCodegen._stack_only)(self, emit_side_effects)
        self.emit_handler()

    @contextlib.contextmanager
    def _in_try_block(self) -> Iterator[None]:
        """Emit the broken instruction: it may raise, inside the user's try and with blocks.

        The instruction sees the exception that is being handled. What it raises goes to the user's handler. Its
        results are still on the stack at the end.
        """
        if self.handler is None:
            yield
            return
        self.materialize(self.live_locals[self.handler.target])
        out = self.cg.body
        if self.frame.exc_stack:
            self.load_all([self.frame.exc_stack[-1]])
            out.emit("PUSH_EXC_INFO")
            out.emit("POP_TOP")
        begin = out.try_begin(self.handler_label, 1 if self.frame.exc_stack else 0)
        yield
        out.try_end(begin)

    def _pop_exc(self) -> None:
        """Pop the handled exception; the results of the instruction must be popped before."""
        if self.frame.exc_stack:
            self.cg.body.emit("POP_EXCEPT")

    def _store_operands(self, count: int) -> tuple[list[Variable], list[str]]:
        """Store the operands in temporaries; return the values below them, and the names."""
        split = len(self.stack) - count
        below = self.stack[:split]
        self.reconstruct(below)
        return below, self.load_to_temps(self.stack[split:])

    def _resume_next(self, below: list[Variable], results: int) -> None:
        """Continue after the instruction, with its results above the values below."""
        names = [self.pop_to_temp() for _ in range(results)]
        self._pop_exc()
        self.return_resume_call(ResumeTarget(self.op.index + 1, [*below, *reversed(names)]))

    # One emitter for each kind of break.

    def _jump(self, emit_side_effects: Callable[[], None]) -> None:
        below, (condition,) = self._store_operands(1)
        self._materialize_both_branches()
        emit_side_effects()
        label = Label()
        with self._in_try_block():
            self.cg.body.load(condition)
            self.cg.body.jump_if_false(label)
        self._pop_exc()
        at_next = ResumeTarget(self.op.index + 1, [*below])
        at_target = ResumeTarget(
            self.op.target, [*below] if _CONDITIONAL_JUMPS[self.op.opname] else [*below, condition]
        )
        if_true, if_false = (at_next, at_target) if "FALSE" in self.op.opname else (at_target, at_next)
        self.return_resume_call(if_true)
        self.cg.body.label(label)
        self._pop_exc()
        self.return_resume_call(if_false)

    def _for_iter(self, emit_side_effects: Callable[[], None]) -> None:
        below, (iterator,) = self._store_operands(1)
        self._materialize_both_branches()
        emit_side_effects()
        label = Label()
        with self._in_try_block():
            self._load_iterator(self.stack[-1], iterator)
            self.cg.body.for_iter(label)
        item = self.pop_to_temp()
        self.cg.body.emit("POP_TOP")
        self._pop_exc()
        self.return_resume_call(ResumeTarget(self.op.index + 1, [*below, iterator, item]))
        self.cg.body.end_for(label)
        self._pop_exc()
        self.return_resume_call(ResumeTarget(index_after_loop(self.op.target), [*below]))

    def _call(self, emit_side_effects: Callable[[], None]) -> None:
        cg, op = self.cg, self.op
        if op.opname == "CALL_FUNCTION_EX":
            count = 2 if RULES.mapping_is_optional else 1 + (op.arg & 1)
        else:
            count = op.arg + (1 if op.opname == "CALL_KW" else 0)
        split = len(self.stack) - count - 2
        below, pair, args = self.stack[:split], self.stack[split : split + 2], self.stack[split + 2 :]
        self.reconstruct(below)
        if RULES.null_above_callable:
            fn, beside = pair
        else:
            fn, beside = (pair[1], NULL) if pair[0] is NULL else pair
        callee, *names = self.load_to_temps([v for v in (fn, beside, *args) if v is not NULL])
        emit_side_effects()
        with self._in_try_block():
            cg.load_callable_dispatched(lambda: cg.body.load(callee))
            for name in names:
                cg.body.load(name)
            self._call_instruction(len(names))
        self._resume_next(below, 1)

    def _call_instruction(self, count: int) -> None:
        out, op = self.cg.body, self.op
        if op.opname == "CALL_FUNCTION_EX":
            if not RULES.mapping_is_optional:
                out.emit("CALL_FUNCTION_EX", op.arg & 1)
                return
            if count == 1:
                out.emit("PUSH_NULL")
            out.emit("CALL_FUNCTION_EX")
            return
        if op.opname == "CALL_KW":
            out.emit("CALL_KW", count - 1)
            return
        if self.frame.kw_names:
            out.emit("KW_NAMES", self.frame.kw_names)
        out.call(count)

    def _load_attr(self, emit_side_effects: Callable[[], None]) -> None:
        as_method = self.op.opname == "LOAD_METHOD" or (RULES.load_attr_has_flag and bool(self.op.arg & 1))
        below, (of,) = self._store_operands(1)
        emit_side_effects()
        with self._in_try_block():
            self.cg.body.load(of)
            self.cg.body.attribute(self.op.argval)
        attribute_temp = self.pop_to_temp()
        self._pop_exc()
        pair: list[Variable | str] = [attribute_temp, NULL] if RULES.null_above_callable else [NULL, attribute_temp]
        self.return_resume_call(ResumeTarget(self.op.index + 1, [*below, *(pair if as_method else [attribute_temp])]))

    def _load_special(self, emit_side_effects: Callable[[], None]) -> None:
        below, (of,) = self._store_operands(1)
        emit_side_effects()
        with self._in_try_block():
            self.cg.body.callable(lambda: self.cg.load_const(load_special_method))
            self.cg.body.load(of)
            self.cg.body.const(self.op.argrepr)
            self.cg.body.call(2)
        attribute_temp = self.pop_to_temp()
        self._pop_exc()
        self.return_resume_call(ResumeTarget(self.op.index + 1, [*below, attribute_temp, NULL]))

    def _with_except(self, emit_side_effects: Callable[[], None]) -> None:
        """Emit a call of ``__exit__`` with the exception that passes a ``with`` block.

        The instruction leaves its operands on the stack.
        """
        self.reconstruct(self.stack)
        emit_side_effects()
        with self._in_try_block():
            self.cg.body.callable(lambda: self.cg.load_const(call_exit))
            self.load_all([self.stack[EXIT_FROM_TOP], self.stack[-1]])
            self.cg.body.call(2)
        self._resume_next(self.stack, 1)

    def _raise(self, emit_side_effects: Callable[[], None]) -> None:
        """Emit a ``raise`` of an unknown object; only a handler can follow it."""
        self.reconstruct(self.stack)
        emit_side_effects()
        with self._in_try_block():
            self.load_all(self.stack[len(self.stack) - self.op.arg :])
            self.cg.body.extend([self._broken_instruction()])

    def _stack_only(self, emit_side_effects: Callable[[], None]) -> None:
        counts = stack_effect(self.op)
        if counts is None:
            raise Unsupported("break-position", f"no graph break is possible at the instruction {self.op.opname}")
        takes, leaves = counts
        below, names = self._store_operands(takes)
        emit_side_effects()
        with self._in_try_block():
            for name in names[:-1]:
                self.cg.body.load(name)
            if names and self.op.opname in _ITERATOR_CONSUMERS:
                self._load_iterator(self.stack[-1], names[-1])
            elif names:
                self.cg.body.load(names[-1])
            self.cg.body.extend([self._broken_instruction()])
        self._resume_next(below, leaves)

    def _load_iterator(self, value: Variable, name: str) -> None:
        """Push an iterator that the broken instruction consumes."""
        if value.python_type() in (map, filter):
            self.cg.load_dispatched(lambda: self.cg.body.load(name))
        else:
            self.cg.body.load(name)

    def _broken_instruction(self) -> Instr:
        return next(i for i, n in editable_instructions(self.code) if n == self.op.index and isinstance(i, Instr))

    def _materialize_both_branches(self) -> None:
        """Reconstruct live locals before the paths diverge, so that both have them."""
        self.materialize(self.live_locals[self.op.index + 1] | self.live_locals[self.op.target])


_EMITTERS = {
    **dict.fromkeys(_CONDITIONAL_JUMPS, BreakCodegen._jump),
    **dict.fromkeys(("CALL", "CALL_KW", "CALL_FUNCTION_EX"), BreakCodegen._call),
    **dict.fromkeys(("LOAD_ATTR", "LOAD_METHOD"), BreakCodegen._load_attr),
    "FOR_ITER": BreakCodegen._for_iter,
    "LOAD_SPECIAL": BreakCodegen._load_special,
    "WITH_EXCEPT_START": BreakCodegen._with_except,
    "RAISE_VARARGS": BreakCodegen._raise,
}
"""Emitters by opcode; the others only use the top of the stack."""
