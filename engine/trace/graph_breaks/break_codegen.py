"""Code for a frame that breaks: run one instruction in Python, then call resume functions."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from types import CodeType, FunctionType
from typing import TYPE_CHECKING, Any

from bytecode import Instr, Label
from bytecode.instr import CellVar, FreeVar, TryBegin

from engine.bytecode.decode import DecodedCode, DecodedInstruction
from engine.bytecode.editable_instructions import editable_instructions
from engine.bytecode.liveness import live_before
from engine.bytecode.opcodes import VERSION, index_after_loop
from engine.bytecode.resume_functions import (
    HANDLED_EXCEPTION,
    VALUE,
    InstructionOffset,
    ResumePoint,
    resume_code,
    resume_info,
    shared_cell_names,
    super_argument_name,
)
from engine.bytecode.resume_functions import NULL as NULL_KIND
from engine.bytecode.source_positions import span_of
from engine.ir.sources.base import STACK_PARAM_PREFIX
from engine.ir.traced_frame import ConstSlot, ResumeFunctionSlot
from engine.trace.codegen_runtime.resume_calls import TailCall, call_exit, run_tail_calls
from engine.trace.exc import Unsupported
from engine.trace.finalize_generators import is_suspended_generator
from engine.trace.variables.base import NULL, ConstantVariable, Variable, reachable_variables
from engine.trace.variables.callables.cells import CellVariable
from engine.trace.variables.exceptions.exceptions import ExceptionVariable, ExcInfoVariable
from engine.trace.variables.objects.user_defined_objects import UserDefinedObjectVariable

if TYPE_CHECKING:
    from engine.trace.codegen import PyCodegen
    from engine.trace.frame import Frame
    from engine.trace.tracer import Tracer

_CONDITIONAL_JUMPS: dict[str, bool] = {
    "POP_JUMP_FORWARD_IF_FALSE": True,
    "POP_JUMP_BACKWARD_IF_FALSE": True,
    "POP_JUMP_IF_FALSE": True,
    "POP_JUMP_FORWARD_IF_TRUE": True,
    "POP_JUMP_BACKWARD_IF_TRUE": True,
    "POP_JUMP_IF_TRUE": True,
    "JUMP_IF_TRUE_OR_POP": False,
    "JUMP_IF_FALSE_OR_POP": False,
}
"""Conditional jumps on a boolean; True if both paths pop the condition."""
_ITERATOR_CONSUMERS = frozenset(("LIST_EXTEND", "SET_UPDATE", "UNPACK_SEQUENCE", "UNPACK_EX", "CONTAINS_OP"))
"""Instructions that consume the iterator on top of the stack."""

_STACK_EFFECTS: dict[str, tuple[int, int]] = {
    "BINARY_OP": (2, 1),
    "BINARY_SUBSCR": (2, 1),
    "BINARY_SLICE": (3, 1),
    "STORE_SUBSCR": (3, 0),
    "STORE_SLICE": (4, 0),
    "DELETE_SUBSCR": (2, 0),
    "COMPARE_OP": (2, 1),
    "CONTAINS_OP": (2, 1),
    "IS_OP": (2, 1),
    "UNARY_NEGATIVE": (1, 1),
    "UNARY_POSITIVE": (1, 1),
    "UNARY_INVERT": (1, 1),
    "UNARY_NOT": (1, 1),
    "TO_BOOL": (1, 1),
    "STORE_ATTR": (2, 0),
    "DELETE_ATTR": (1, 0),
    "GET_ITER": (1, 1),
    "IMPORT_NAME": (2, 1),
    "IMPORT_FROM": (1, 2),
    "LIST_TO_TUPLE": (1, 1),
    "FORMAT_SIMPLE": (1, 1),
    "FORMAT_WITH_SPEC": (2, 1),
    "CONVERT_VALUE": (1, 1),
    "GET_LEN": (1, 2),
    "LOAD_BUILD_CLASS": (0, 1),
    "MATCH_CLASS": (3, 1),
    "MATCH_KEYS": (2, 3),
    "DELETE_GLOBAL": (0, 0),
    "BEFORE_WITH": (1, 2),
    "CHECK_EXC_MATCH": (2, 2),
}
"""Instructions that only use the top of the stack: how many values they pop and push."""


def stack_effect(op: DecodedInstruction) -> tuple[int, int] | None:
    """Return how many values an instruction pops and pushes; None if it cannot run by itself."""
    known = _STACK_EFFECTS.get(op.opname)
    if known is not None:
        return known
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
        case "FORMAT_VALUE":
            return (2 if op.arg & 4 else 1), 1
        case "LIST_EXTEND" | "SET_UPDATE" | "DICT_UPDATE" | "LIST_APPEND" | "SET_ADD":
            return op.arg + 1, op.arg
        case "MAP_ADD":
            return op.arg + 2, op.arg
        case "DICT_MERGE":
            return op.arg + 1, op.arg
    return None


def _constructed_objects(values: Iterable[Variable]) -> set[int]:
    """Return the ids of reachable user-defined objects that the traced code created."""
    return {
        id(value)
        for value in reachable_variables(values)
        if type(value) is UserDefinedObjectVariable and (value.source is None or value.is_constructed)
    }


@dataclass(frozen=True)
class ResumeTarget:
    """Continuation after the broken instruction on one path.

    ``index`` is the next instruction, ``stack`` the remaining stack: variables or names of temporaries.
    """

    index: int
    stack: list[Variable | str]


class BreakCodegen:
    """Emitter of the graph break at one instruction of a frame."""

    def __init__(
        self,
        tx: Tracer,
        cg: PyCodegen,
        frame: Frame,
        op: DecodedInstruction,
        stack: list[Variable],
        *,
        is_root: bool = True,
    ) -> None:
        self.tx = tx
        self.cg = cg
        self.frame = frame
        self.is_root = is_root
        self.op = op
        self.stack = stack
        self.code: CodeType = frame.code
        self.decoded: DecodedCode = frame.decoded
        first = super_argument_name(self.code)
        self.live_locals = tuple(live | {first} if first else live for live in live_before(frame.decoded))
        self.resume_slots: list[ResumeFunctionSlot] = []
        self.handler = frame.decoded.handlers[op.index]
        self.handler_label = Label()

    def variables_to_load(self) -> list[Variable]:
        """Return all variables that the new code may load."""
        return [*(v for v in self.stack if v is not NULL), *self.frame.locals.values(), *self.cells()]

    def cells(self) -> list[Variable]:
        """Return the cells of the call."""
        return [c for c in self.frame.cells.values() if isinstance(c, Variable)]

    def emit(self, replay: Callable[[], None]) -> None:
        """Emit all code after the graph; ``emit_side_effects`` emits the side effects.

        Raises:
            Unsupported: Python cannot run this instruction by itself.
        """
        self.check_exc_stack()
        here = self.live_locals[self.op.index]
        local = [v for n, v in self.frame.locals.items() if n in here]
        dated = [
            v
            for v in reachable_variables([v for v in self.stack if v is not NULL] + local)
            if v.reconstruct_before_break
        ]
        # Python closes a suspended generator also if the broken instruction raises. Its local must exist by then.
        early = [*dated, *(v for v in self.frame.locals.values() if is_suspended_generator(v))]
        self.load_all(early)
        self.pop_many(len(early))
        self.store_cells()
        if self.op.opname in _CONDITIONAL_JUMPS:
            self._jump(replay)
        elif self.op.opname == "FOR_ITER":
            self._for_iter(replay)
        elif self.op.opname in ("CALL", "CALL_KW", "CALL_FUNCTION_EX"):
            self._call(replay)
        elif self.op.opname in ("LOAD_ATTR", "LOAD_METHOD"):
            self._load_attr(replay)
        elif self.op.opname == "WITH_EXCEPT_START":
            self._with_except(replay)
        elif self.op.opname == "RAISE_VARARGS":
            self._raise(replay)
        else:
            self._stack_only(replay)
        self.emit_handler()

    def check_exc_stack(self) -> None:
        """Check that the stack holds every exception that is being handled.

        Raises:
            Unsupported: it does not.
        """
        if [v.exception for v in self.stack if isinstance(v, ExcInfoVariable)] != self.frame.exc_stack:
            raise Unsupported("break-position", "an exception is about to leave its handler")

    # The broken instruction runs in Python and may raise, inside the user's try and with blocks.

    def _begin_try(self) -> TryBegin | None:
        """Begin the try block of the broken instruction.

        The instruction sees the exception that is being handled. What it raises goes to the user's handler.
        """
        out = self.cg.body
        if self.handler is None:
            return None
        self.materialize(self.live_locals[self.handler.target])
        if self.frame.exc_stack:
            self.load_all([self.frame.exc_stack[-1]])
            out.emit("PUSH_EXC_INFO")
            out.emit("POP_TOP")
        return out.try_begin(self.handler_label, 1 if self.frame.exc_stack else 0)

    def _end_try(self, begin: TryBegin | None) -> None:
        """End the try block; the results of the instruction are still on the stack."""
        if begin is not None:
            self.cg.body.try_end(begin)

    def _pop_exc(self) -> None:
        """Pop the handled exception; the results must be off the stack."""
        if self.frame.exc_stack:
            self.cg.body.emit("POP_EXCEPT")

    def emit_handler(self) -> None:
        """Emit the handler of the broken instruction: it resumes at the user's handler."""
        if self.handler is None:
            return
        out = self.cg.body
        out.label(self.handler_label)
        if self.frame.exc_stack:
            out.emit("SWAP", 2)
            out.emit("POP_EXCEPT")
        self.return_resume_call(self.handler_target(self.pop_to_temp()))

    def handler_target(self, error: str) -> ResumeTarget:
        """Return the continuation at the handler; the local ``error`` holds the exception."""
        assert self.handler is not None
        stack: list[Variable | str] = [*self.stack[: self.handler.depth]]
        if self.handler.pushes_lasti:
            stack.append(ConstantVariable(InstructionOffset(self.op.offset // 2)))
        return ResumeTarget(self.handler.target, [*stack, error])

    # One emitter for each kind of break.

    def _jump(self, replay: Callable[[], None]) -> None:
        takes = _CONDITIONAL_JUMPS[self.op.opname]
        below = self.stack[:-1]
        self.load_all([*below, self.stack[-1]])
        condition = self.pop_to_temp()
        self.pop_many(len(below))
        self._materialize_both_branches()
        replay()
        begin = self._begin_try()
        self.cg.body.load(condition)
        jumps_if_false = "FALSE" in self.op.opname
        label = Label()
        self.cg.body.jump_if_false(label)
        self._end_try(begin)
        self._pop_exc()
        kept: list[Variable | str] = [*below]
        at_target: list[Variable | str] = kept if takes else [*kept, condition]
        if jumps_if_false:
            self.return_resume_call(ResumeTarget(self.op.index + 1, kept))
            self.cg.body.label(label)
            self._pop_exc()
            self.return_resume_call(ResumeTarget(self.op.target, at_target))
        else:
            self.return_resume_call(ResumeTarget(self.op.target, at_target))
            self.cg.body.label(label)
            self._pop_exc()
            self.return_resume_call(ResumeTarget(self.op.index + 1, kept))

    def _for_iter(self, replay: Callable[[], None]) -> None:
        self.load_all(self.stack)
        iterator = self.pop_to_temp()
        self.pop_many(len(self.stack) - 1)
        self._materialize_both_branches()
        replay()
        label = Label()
        begin = self._begin_try()
        self._load_iterator(self.stack[-1], iterator)
        self.cg.body.for_iter(label)
        self._end_try(begin)
        item = self.pop_to_temp()
        self.cg.body.emit("POP_TOP")
        self._pop_exc()
        below: list[Variable | str] = [*self.stack[:-1]]
        self.return_resume_call(ResumeTarget(self.op.index + 1, [*below, iterator, item]))
        self.cg.body.end_for(label)
        self._pop_exc()
        self.return_resume_call(ResumeTarget(index_after_loop(self.op.target), below))

    def _call(self, replay: Callable[[], None]) -> None:
        cg, op = self.cg, self.op
        count = 1 + (op.arg & 1) if op.opname == "CALL_FUNCTION_EX" else op.arg + (1 if op.opname == "CALL_KW" else 0)
        below, operands_ = self.stack[: -count - 2], self.stack[len(self.stack) - count - 2 :]
        self.load_all(below)
        self.pop_many(len(below))
        pair, args = operands_[:2], operands_[2:]
        if VERSION >= (3, 13):
            fn, beside = pair
        else:
            fn, beside = (pair[1], NULL) if pair[0] is NULL else pair
        first = [] if beside is NULL else [beside]
        self.load_all([fn, *first, *args])
        names = [self.pop_to_temp() for _ in (fn, *first, *args)]
        names.reverse()
        replay()
        begin = self._begin_try()
        cg.load_callable_dispatched(lambda: cg.body.load(names[0]))
        for name in names[1:]:
            cg.body.load(name)
        self._call_instruction(len(names) - 1)
        self._end_try(begin)
        result = self.pop_to_temp()
        self._pop_exc()
        self.return_resume_call(ResumeTarget(op.index + 1, [*below, result]))

    def _call_instruction(self, count: int) -> None:
        out, op = self.cg.body, self.op
        if op.opname == "CALL_FUNCTION_EX":
            out.emit("CALL_FUNCTION_EX", op.arg & 1)
            return
        if op.opname == "CALL_KW":
            out.emit("CALL_KW", count - 1)
            return
        if self.frame.kw_names:
            out.emit("KW_NAMES", self.frame.kw_names)
        out.call(count)

    def _load_attr(self, replay: Callable[[], None]) -> None:
        as_method = self.op.opname == "LOAD_METHOD" or (VERSION >= (3, 12) and bool(self.op.arg & 1))
        self.load_all(self.stack)
        of = self.pop_to_temp()
        self.pop_many(len(self.stack) - 1)
        replay()
        begin = self._begin_try()
        self.cg.body.load(of)
        self.cg.body.attribute(self.op.argval)
        self._end_try(begin)
        found = self.pop_to_temp()
        self._pop_exc()
        pair: list[Variable | str] = [found, NULL] if VERSION >= (3, 13) else [NULL, found]
        self.return_resume_call(ResumeTarget(self.op.index + 1, [*self.stack[:-1], *(pair if as_method else [found])]))

    def _with_except(self, replay: Callable[[], None]) -> None:
        """Emit a call of ``__exit__`` with the exception that passes a ``with`` block.

        The instruction leaves its operands on the stack.
        """
        self.load_all(self.stack)
        self.pop_many(len(self.stack))
        replay()
        begin = self._begin_try()
        self.cg.body.callable(lambda: self.cg.load_const(call_exit))
        self.load_all([self.stack[-4], self.stack[-1]])
        self.cg.body.call(2)
        self._end_try(begin)
        result = self.pop_to_temp()
        self._pop_exc()
        self.return_resume_call(ResumeTarget(self.op.index + 1, [*self.stack, result]))

    def _raise(self, replay: Callable[[], None]) -> None:
        """Emit a ``raise`` of an unknown object; only a handler can follow it."""
        split = len(self.stack) - self.op.arg
        self.load_all(self.stack)
        self.pop_many(len(self.stack))
        replay()
        begin = self._begin_try()
        self.load_all(self.stack[split:])
        self.cg.body.extend([self._broken_instruction()])
        self._end_try(begin)

    def _stack_only(self, replay: Callable[[], None]) -> None:
        counts = stack_effect(self.op)
        if counts is None:
            raise Unsupported("break-position", f"no graph break is possible at the instruction {self.op.opname}")
        takes, leaves = counts
        split = len(self.stack) - takes
        below, taken = self.stack[:split], self.stack[split:]
        self.load_all(below)
        self.pop_many(len(below))
        self.load_all(taken)
        names = [self.pop_to_temp() for _ in taken]
        names.reverse()
        replay()
        begin = self._begin_try()
        for name in names[:-1]:
            self.cg.body.load(name)
        if names and self.op.opname in _ITERATOR_CONSUMERS:
            self._load_iterator(taken[-1], names[-1])
        elif names:
            self.cg.body.load(names[-1])
        self.cg.body.extend([self._broken_instruction()])
        self._end_try(begin)
        results: list[Variable | str] = [self.pop_to_temp() for _ in range(leaves)]
        results.reverse()
        self._pop_exc()
        self.return_resume_call(ResumeTarget(self.op.index + 1, [*below, *results]))

    def _load_iterator(self, value: Variable, name: str) -> None:
        """Push an iterator that the broken instruction consumes."""
        if value.python_type() in (map, filter):
            self.cg.load_dispatched(lambda: self.cg.body.load(name))
        else:
            self.cg.body.load(name)

    def _broken_instruction(self) -> Instr:
        return next(i for i, n in editable_instructions(self.code) if n == self.op.index and isinstance(i, Instr))

    # Helpers.

    def load_all(self, values: list[Variable]) -> None:
        """Push variables in order."""
        # The last variable must end on top, so placeholders for NULL go below all others.
        for _ in [v for v in values if v is NULL]:
            self.cg.load_const(None)
        self.cg.load_all(v for v in values if v is not NULL)
        self.cg.fill_deferred()

    def _materialize_both_branches(self) -> None:
        """Reconstruct live locals before the paths diverge, so that both have them."""
        self.materialize(self.live_locals[self.op.index + 1] | self.live_locals[self.op.target])

    def materialize(self, wanted: frozenset[str]) -> None:
        """Reconstruct these locals now."""
        values = [v for n, v in self.frame.locals.items() if n in wanted]
        self.load_all(values)
        self.pop_many(len(values))

    def pop_many(self, count: int) -> None:
        """Pop ``count`` values."""
        for _ in range(count):
            self.cg.body.emit("POP_TOP")

    def pop_to_temp(self) -> str:
        """Pop into a new temporary and return its name."""
        name = self.cg.new_temp("t")
        self.cg.body.store(name)
        return name

    def store_cells(self) -> None:
        """Store the contents of the frame's own cells.

        Resume functions and closures share these cells.
        """
        for name in self.code.co_cellvars:
            cell: Any = self.frame.cells.get(name)
            if cell is not None:
                self.cg.store_root_cell(name, cell)

    def return_resume_call(self, outcome: ResumeTarget) -> None:
        """Return the result of the rest of the function.

        Objects reconstructed on this path do not exist on other paths.
        """
        with self.cg.alternative_path():
            if resume_info(self.code) is None:
                self.load_resume_result(outcome)
            else:
                self._emit_resume_call(outcome, TailCall)
            self.cg.body.return_value()

    def load_resume_result(self, outcome: ResumeTarget, *, is_broken: bool = False) -> None:
        """Run the rest of the function and push its return value."""
        out = self.cg.body
        out.callable(lambda: self.cg.load_const(run_tail_calls))
        self._emit_resume_call(outcome, None, is_broken=is_broken)
        out.call(1)

    def _emit_resume_call(
        self, outcome: ResumeTarget, wrapper: type[TailCall] | None, *, is_broken: bool = False
    ) -> None:
        """Push the result of the resume function, or with ``wrapper`` a ``TailCall`` of it."""
        out = self.cg.body
        first, holder = self._super_argument()
        held = self._locals_to_hold() | {n for n, v in self.frame.locals.items() if is_suspended_generator(v)}
        # Stack parameters of this resume function are consumed, and the next one has parameters of the same names.
        wanted = self.live_locals[outcome.index] | {n for n in held if not n.startswith(STACK_PARAM_PREFIX)}
        names = tuple(sorted(n for n in wanted if n in self.frame.locals and n != first))
        if any(not n.isidentifier() for n in names):
            raise Unsupported("break-position", "a graph break inside a comprehension")
        if any(isinstance(v, CellVariable) for v in outcome.stack):
            raise Unsupported("break-position", "a comprehension whose variable is captured by a closure")
        kinds = tuple(self._stack_slot_kind(v) for v in outcome.stack)
        code = resume_code(self.code, ResumePoint(outcome.index, kinds, names, first, is_broken))
        slot = ConstSlot("resume")
        free = shared_cell_names(self.code)
        span = span_of(self.code, self.op.offset)
        self.resume_slots.append(ResumeFunctionSlot(slot, code, self.frame.globals.values, span, bool(free)))  # type: ignore[arg-type]
        if wrapper is not None:
            out.callable(lambda: self.cg.load_const(wrapper))
            self._load_resume_function(slot, code, free)
        else:
            out.callable(lambda: self._load_resume_function(slot, code, free))
        if holder is not None:
            self.cg.load(holder)
        for value, kind in zip(outcome.stack, kinds, strict=True):
            if isinstance(value, str):
                out.load(value)
            elif kind in (VALUE, HANDLED_EXCEPTION):
                self.cg.load(value)
        self.cg.load_all(self.frame.locals[n] for n in names)
        self.cg.fill_deferred()
        # An exception references the frames that it passed. A frame that references it too would form a cycle,
        # and live until the next garbage collection.
        for name in [v for v in outcome.stack if isinstance(v, str)] + self.cg.temps_of_type(ExceptionVariable):
            self.cg.load_const(None)
            out.store(name)
        out.call(sum(k in (VALUE, HANDLED_EXCEPTION) for k in kinds) + len(names) + bool(first) + (wrapper is not None))

    def _locals_to_hold(self) -> frozenset[str]:
        """Return dead locals that must still keep an object alive.

        The broken instruction may have created a weak reference to the object. The root function's frame holds
        its objects until the whole call ends, but a resume function ends before the next one begins.
        """
        if resume_info(self.code) is None:
            return frozenset()
        given = frozenset(self.code.co_varnames[: self.code.co_argcount]) - self.live_locals[0]
        shown = _constructed_objects(self.stack)
        return given.union(
            n for n, v in self.frame.locals.items() if shown and not shown.isdisjoint(_constructed_objects([v]))
        )

    def _super_argument(self) -> tuple[str, Variable | None]:
        """Return the parameter that ``super()`` reads, and its variable.

        If the parameter is a cell here, its content is passed as an extra parameter beside the cell.
        """
        name = super_argument_name(self.code)
        if name in self.frame.locals:
            return name, self.frame.locals[name]
        cell = self.frame.cells.get(name)
        if cell is None or cell.content is None:
            return "", None
        return "__first", cell.content

    def _stack_slot_kind(self, value: Variable | str) -> str | int:
        """Return the way in which a resume function receives a stack value."""
        if isinstance(value, ExcInfoVariable):
            return HANDLED_EXCEPTION
        if isinstance(value, ConstantVariable) and type(value.value) is InstructionOffset:
            return self.decoded.index_of[2 * value.value]
        return NULL_KIND if value is NULL else VALUE

    def _load_resume_function(self, slot: ConstSlot, code: CodeType, free: tuple[str, ...]) -> None:
        """Push the resume function; if it has free variables, build it around the cells now."""
        out = self.cg.body
        if not free:
            out.const(slot)
            return
        out.callable_const(slot)
        if not self.is_root:
            out.callable(lambda: self.cg.load_const(FunctionType))
            out.const(code)
            self.cg.load_namespace(self.frame.globals)
            out.const(code.co_name)
            out.const(None)
            self._load_inlined_cells(free)
            out.call(5)
            out.call(1)
            return
        for name in free:
            out.closure(CellVar(name) if name in self.code.co_cellvars else FreeVar(name))
        out.emit("BUILD_TUPLE", len(free))
        out.const(code)
        if VERSION >= (3, 13):
            out.emit("MAKE_FUNCTION")
            out.emit("SET_FUNCTION_ATTRIBUTE", 8)
        else:
            out.emit("MAKE_FUNCTION", 8)
        out.call(1)

    def _load_inlined_cells(self, free: tuple[str, ...]) -> None:
        """Push a tuple with the cells of an inlined call."""
        for name in free:
            self.cg.load(self.frame.cells[name])
        self.cg.fill_deferred()
        self.cg.body.emit("BUILD_TUPLE", len(free))
