"""Code that calls the resume functions of one frame."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from types import CodeType, FunctionType
from typing import Any, cast

from bytecode import Label
from bytecode.instr import CellVar, FreeVar

from engine.bytecode.decode import DecodedCode, DecodedInstruction
from engine.bytecode.liveness import assigned_in_loop, live_before
from engine.bytecode.opcodes import RULES
from engine.bytecode.resume_functions import (
    HANDLED_EXCEPTION,
    VALUE,
    InstructionOffset,
    ResumePoint,
    resume_code,
    resume_info,
    shared_cell_names,
    stack_parameters,
    super_argument_name,
)
from engine.bytecode.resume_functions import NULL as NULL_KIND
from engine.bytecode.source_positions import span_of
from engine.frame_code.codegen_runtime.resume_calls import TailCall, run_tail_calls
from engine.ir.sources.base import STACK_PARAM_PREFIX
from engine.ir.traced_frame import ConstSlot, ResumeFunctionSlot
from engine.trace.annotations import Frame, PyCodegen
from engine.trace.exc import Unsupported
from engine.trace.graph_breaks.varying_values import restart_if_changed, varying_dims
from engine.trace.variables.base import NULL, ConstantVariable, Variable, reachable_variables
from engine.trace.variables.callables.cells import CellVariable
from engine.trace.variables.exceptions.exceptions import ExceptionVariable, ExcInfoVariable
from engine.trace.variables.objects.user_defined_objects import UserDefinedObjectVariable


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


class ResumeCodegen:
    """Emitter of the calls of resume functions, for one frame that breaks at an instruction."""

    def __init__(
        self,
        cg: PyCodegen,
        frame: Frame,
        op: DecodedInstruction,
        stack: list[Variable],
        *,
        is_root: bool = True,
        result_dims: frozenset[int] = frozenset(),
    ) -> None:
        self.cg = cg
        self.frame = frame
        self.is_root = is_root
        self.result_dims = result_dims
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
        variables = [*self.stack, *self.frame.locals.values(), *self.frame.cells.values()]
        return [v for v in variables if v is not NULL]

    def check_exc_stack(self) -> None:
        """Check that the stack holds every exception that is being handled.

        Raises:
            Unsupported: it does not.
        """
        handled = [v.handled_exception for v in self.stack if v.handled_exception is not None]
        if handled != self.frame.exc_stack:
            raise Unsupported("break-position", "an exception is about to leave its handler")

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

    def load_all(self, values: list[Variable]) -> None:
        """Push variables in order."""
        # The last variable must end on top, so placeholders for NULL go below all others.
        for _ in [v for v in values if v is NULL]:
            self.cg.load_const(None)
        self.cg.load_all(v for v in values if v is not NULL)
        self.cg.fill_deferred()

    def reconstruct(self, values: list[Variable]) -> None:
        """Reconstruct variables now; loads after this push the same objects."""
        self.load_all(values)
        self.pop_many(len(values))

    def materialize(self, needed: frozenset[str]) -> None:
        """Reconstruct these locals now."""
        self.reconstruct([v for n, v in self.frame.locals.items() if n in needed])

    def pop_many(self, count: int) -> None:
        """Pop ``count`` values."""
        for _ in range(count):
            self.cg.body.emit("POP_TOP")

    def pop_to_temp(self) -> str:
        """Pop into a new temporary and return its name."""
        name = self.cg.new_temp("t")
        self.cg.body.store(name)
        return name

    def load_to_temps(self, values: list[Variable]) -> list[str]:
        """Store variables in new temporaries and return their names."""
        self.load_all(values)
        return [self.pop_to_temp() for _ in values][::-1]

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
        always = self._locals_to_hold() | {n for n, v in self.frame.locals.items() if v.holds_suspended_generator}
        # Stack parameters of this resume function are consumed, and the next one has parameters of the same names.
        needed = self.live_locals[outcome.index] | {n for n in always if not n.startswith(STACK_PARAM_PREFIX)}
        names = tuple(sorted(n for n in needed if n in self.frame.locals and n != first))
        if any(not n.isidentifier() for n in names):
            raise Unsupported("break-position", "a graph break inside a comprehension")
        if any(isinstance(v, CellVariable) for v in outcome.stack):
            raise Unsupported("break-position", "a comprehension whose variable is captured by a closure")
        kinds = tuple(self._stack_slot_kind(v) for v in outcome.stack)
        point = ResumePoint(outcome.index, kinds, names, first, is_broken)
        code = resume_code(self.code, point)
        slot = ConstSlot("resume")
        free = shared_cell_names(self.code)
        self._register_resume_function(slot, code, point, outcome)
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

    def _register_resume_function(
        self, slot: ConstSlot, code: CodeType, point: ResumePoint, outcome: ResumeTarget
    ) -> None:
        """Note what linking needs to make the dispatcher of the resume function."""
        passed = [v for v, kind in zip(outcome.stack, point.stack, strict=True) if kind in (VALUE, HANDLED_EXCEPTION)]
        arguments = [
            *zip(stack_parameters(point), passed, strict=True),
            *((name, self.frame.locals[name]) for name in point.locals),
        ]
        if code is self.code:
            restart_if_changed(self.cg.tx, arguments)
        varying = varying_dims(self.cg.tx, arguments, self._loop_values(outcome.index), self.result_dims)
        namespace = cast("dict[str, Any]", self.frame.globals.values)
        has_cells = bool(shared_cell_names(self.code))
        span = span_of(self.code, self.op.offset)
        self.resume_slots.append(ResumeFunctionSlot(slot, code, namespace, span, has_cells, varying))

    def _loop_values(self, index: int) -> frozenset[int]:
        """Return the ids of variables that a loop here, or in a caller, assigns."""
        return frozenset(
            id(frame.locals[name].resolved)
            for frame in self.cg.tx.call_stack.frames
            for name in assigned_in_loop(frame.decoded, index if frame is self.frame else frame.op.index)
            if name in frame.locals
        )

    def _locals_to_hold(self) -> frozenset[str]:
        """Return dead locals that must still keep an object alive.

        The broken instruction may have created a weak reference to the object. The root function's frame holds
        its objects until the whole call ends, but a resume function ends before the next one begins.
        """
        if resume_info(self.code) is None:
            return frozenset()
        dead_parameters = frozenset(self.code.co_varnames[: self.code.co_argcount]) - self.live_locals[0]
        on_stack = _constructed_objects(self.stack)
        candidates = self.frame.locals.items() if on_stack else ()
        return dead_parameters.union(n for n, v in candidates if not on_stack.isdisjoint(_constructed_objects([v])))

    def _super_argument(self) -> tuple[str, Variable | None]:
        """Return the parameter that ``super()`` reads, and its variable.

        If the parameter is a cell here, its content is passed as an extra parameter in addition to the cell.
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
        if isinstance(value, ConstantVariable) and value.python_type() is InstructionOffset:
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
        if RULES.attributes_after_function:
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
