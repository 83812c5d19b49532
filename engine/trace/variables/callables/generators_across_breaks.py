"""Generators that an earlier graph left suspended and rebuilt.

Their remaining steps are traced; after the graph, the real generators are ended.
"""

from __future__ import annotations

from types import GeneratorType
from typing import Any

from engine.bytecode.decode import decode
from engine.bytecode.liveness import reachable_from
from engine.bytecode.resume_functions import (
    NOT_STARTED,
    ResumeInfo,
    StopToken,
    resume_info,
    shared_cell_names,
    stop_token_of,
)
from engine.frame_code.codegen_runtime.iterators import end_unstarted_generator
from engine.ir.guards.python_values import EqualsMatch, IdMatch
from engine.ir.sources.attributes import AttrSource
from engine.ir.sources.base import STACK_PARAM_PREFIX, GlobalsNamespace, Source
from engine.ir.sources.containers import GetItemSource
from engine.trace.annotations import PyCodegen, Tracer
from engine.trace.exc import Unsupported
from engine.trace.frame import Frame
from engine.trace.variables.base import NONE, NULL, Variable
from engine.trace.variables.callables.cells import CellVariable
from engine.trace.variables.callables.generators import GeneratorVariable

_CELL_WRITING_OPCODES = frozenset(("STORE_DEREF", "DELETE_DEREF", "LOAD_CLOSURE", "MAKE_CELL"))


class SuspendedGeneratorVariable(GeneratorVariable):
    """A real generator that ``make_suspended_generator`` built and that has not run since.

    Its body is traced; the real generator is ended after the graph.
    """

    mutation_words = "the generator is exhausted"
    __slots__ = ("real_object", "source", "stop_token")

    def __init__(self, real: Any, source: Source, frame: Frame, mark: StopToken) -> None:
        super().__init__(frame, 0, (NONE, [], {}))
        self.real_object = real
        self.source = source
        self.stop_token = mark
        self.is_started = True

    def as_python_object(self) -> Any:
        return self.real_object

    def before_step(self, tx: Tracer) -> None:
        super().before_step(tx)
        self.created_at = self.created_at or tx.instruction_counter.root_instruction_number

    def child_variables(self) -> list[Variable]:
        return []

    def rebuild_error(self) -> Unsupported:
        """Return the error that leaves the steps of the generator to Python."""
        what = "a generator created outside the graph is still suspended at the end"
        return Unsupported("outside-iterator", what, created_at=self.created_at)

    def fill(self, cg: PyCodegen) -> None:
        """Emit code that ends the real generator on the stack.

        Raises:
            Unsupported: the body is suspended again, at another ``yield``.
        """
        if not self.frame.is_finished:
            raise self.rebuild_error()
        cg.pop_into_call(end_unstarted_generator, self.stop_token)


def build_suspended_generator(
    tx: Tracer, real: GeneratorType[Any, Any, Any], source: Source
) -> SuspendedGeneratorVariable | None:
    """Return the variable of a real generator if its remaining steps are known, else None."""
    code = real.gi_code
    mark = stop_token_of(code)
    resume_code = None if mark is None or mark.code is None else mark.code()
    info = None if resume_code is None else resume_info(resume_code)
    base = None if info is None else info.base_code()
    if mark is None or resume_code is None or info is None or base is None or real.gi_frame is None:
        return None
    body = decode(base)
    follows = reachable_from(body, info.index + 1)
    writes = any(body.ops[n].opname in _CELL_WRITING_OPCODES for n in follows)
    if writes or not real.gi_frame.f_locals.get(NOT_STARTED):
        return None
    why = tx.guard_cause("a generator continues after an earlier graph break")
    variables = AttrSource(AttrSource(source, "gi_frame"), "f_locals")
    tx.guards.add(IdMatch(AttrSource(source, "gi_code"), code, cause=why))
    tx.guards.add(EqualsMatch(GetItemSource(variables, NOT_STARTED), True, cause=why))
    return SuspendedGeneratorVariable(real, source, _rebuild_frame(tx, real, variables, resume_code, info, base), mark)


def _rebuild_frame(tx: Tracer, real: Any, source: Source, resume_code: Any, info: ResumeInfo, base: Any) -> Frame:
    """Rebuild the frame of the suspended body; parameters of the code hold its stack items."""
    values = real.gi_frame.f_globals
    frame = tx.frame.callee(base, GlobalsNamespace(values, str(values.get("__name__", ""))))
    frame_locals = real.gi_frame.f_locals
    frame.next_index = info.index + 1
    frame.op = frame.decoded.ops[info.index]
    names = resume_code.co_varnames[: resume_code.co_argcount]
    stack = [name for name in names if name.startswith(STACK_PARAM_PREFIX)]
    for position in range(_stack_depth(resume_code) - 1):  # the top of the stack is the yielded value
        name = f"{STACK_PARAM_PREFIX}{position}"
        frame.stack.append(tx.make_lazy(frame_locals[name], GetItemSource(source, name)) if name in stack else NULL)
    for name in names[len(stack) :]:
        frame.locals[name] = tx.make_lazy(frame_locals[name], GetItemSource(source, name))
    for name in shared_cell_names(base):
        frame.cells[name] = CellVariable(
            tx.make_lazy(frame_locals[name], GetItemSource(source, name)) if name in frame_locals else None
        )
    return frame


def _stack_depth(resume_code: Any) -> int:
    """Return the number of stack slots that the start of the code restores."""
    depth = 0
    ops = decode(resume_code).ops
    for op in ops[[op.opname for op in ops].index("RESUME") + 1 :]:
        if op.opname == "JUMP_FORWARD":
            return depth
        depth += 1
    return depth
