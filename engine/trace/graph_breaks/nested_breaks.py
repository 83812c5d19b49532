"""Graph breaks inside inlined calls: each frame of the call stack gets a resume function.

The graph ends inside the calls. The innermost resume function starts with the instruction that broke and
runs it as Python would. Its return value goes to the resume function of its caller, and so on up to the
root.

This follows nested graph breaks in torch._dynamo.
"""

from __future__ import annotations

import inspect
import itertools
from collections.abc import Callable
from typing import Any

import torch
from bytecode import Label

from engine.bytecode.opcodes import CALL_PREFIX_OPS
from engine.ir.user_code_files import is_library_file, is_traceable_torch_module
from engine.trace.annotations import Frame, PyCodegen, Tracer
from engine.trace.exc import InlinedBreakpoint
from engine.trace.graph_breaks.frame_readers import may_read_own_frame
from engine.trace.graph_breaks.resume_codegen import ResumeCodegen, ResumeTarget
from engine.trace.variables.base import Variable


def find_inlined_breakpoint(tx: Tracer) -> InlinedBreakpoint | None:
    """Return the innermost point inside inlined calls where the graph can end now, or None.

    None means the root frame's instruction. All calls down to that point must be resumable. The frame there
    must have added graph operations, or have tensors to continue with.
    """
    frames = tx.call_stack.frames
    if len(frames) < 2 or tx.in_subgraph():
        return None
    depth = 0
    while depth + 1 < len(frames) and _can_split_call(frames[depth], frames[depth + 1]):
        depth += 1
    while depth and not (_is_user_code(frames[depth]) and _frame_has_tensors(tx, frames[depth])):
        depth -= 1
    inlined = frames[1 : depth + 1]
    if not all(_is_user_code(f) or _is_decorator_wrapper(f, g) for f, g in itertools.pairwise(inlined)):
        return None
    if any(reaches_suspended_generator(v, 3) for f in inlined for v in (*f.stack, *f.locals.values())):
        return None  # the root's code would hold the generator until the root returns
    frame = frames[depth]
    return InlinedBreakpoint(frame.instruction_number, depth, frame.code, frame.op.offset) if depth else None


def _can_split_call(caller: Frame, frame: Frame) -> bool:
    """Return True if the call can be split in two and its caller can use what it returns."""
    code = frame.code
    return (
        frame.returns_to_call
        and not caller.exc_stack
        and not code.co_flags & inspect.CO_GENERATOR
        and all(name.isidentifier() for name in code.co_varnames)
        and not may_read_own_frame(caller)
        and not may_read_own_frame(frame)
    )


def _is_user_code(frame: Frame) -> bool:
    """Return True if the function would be compiled if Python called it.

    Library functions are not compiled, except torch functions over tensors.
    """
    module = frame.globals.name
    is_of_torch = is_library_file(frame.code.co_filename)
    return not is_of_torch or module.startswith("torch.nn.modules.") or is_traceable_torch_module(module)


def _is_decorator_wrapper(wrapper: Frame, wrapped: Frame) -> bool:
    """Return True if ``wrapper`` is a decorator's wrapper around the function that it calls."""
    return any(v.resolved is wrapped.function for v in wrapper.cell_contents())


def reaches_suspended_generator(value: Variable, depth: int) -> bool:
    """Return True if a suspended generator with exception handlers is reachable.

    It may run these handlers when it is destroyed.
    """
    children = value.resolved.child_variables()[:20] if depth else ()
    return value.runs_handlers_when_freed() or any(reaches_suspended_generator(v, depth - 1) for v in children)


def _frame_has_tensors(tx: Tracer, frame: Frame) -> bool:
    """Return True if the call added graph operations or can reach tensors or modules."""
    if tx.graph.op_count != frame.ops_at_entry:
        return True
    return any(_reaches_tensor(v, 3) for v in (*frame.locals.values(), *frame.cell_contents()))


def _reaches_tensor(value: Variable, depth: int) -> bool:
    value = value.resolved
    if value.is_lazy:
        return holds_tensor(value.as_python_object(), depth)
    if issubclass(value.python_type(), (torch.Tensor, torch.nn.Module)):
        return True
    return depth > 0 and any(_reaches_tensor(v, depth - 1) for v in value.child_variables()[:20])


def holds_tensor(value: Any, depth: int) -> bool:
    """Return True if a tensor or module is reachable from the object."""
    if isinstance(value, (torch.Tensor, torch.nn.Module)):
        return True
    if depth == 0:
        return False
    if isinstance(value, (list, tuple)):
        return any(holds_tensor(v, depth - 1) for v in value[:20])
    if isinstance(value, dict):
        return any(holds_tensor(v, depth - 1) for v in list(value.values())[:20])
    owner = getattr(value, "__self__", None)
    if owner is not None and not inspect.ismodule(owner):
        return holds_tensor(owner, depth - 1)
    return callable(value) and not isinstance(value, type)


class NestedBreakCodegen:
    """Emitter of a graph break inside inlined calls.

    ``frames`` are the root frame and the inlined frames, outermost first.
    """

    def __init__(self, cg: PyCodegen, frames: list[Frame], *, result_varies: bool) -> None:
        self.cg = cg
        self.frame_codegens = [ResumeCodegen(cg, f, f.op, list(f.stack), is_root=n == 0) for n, f in enumerate(frames)]
        self.frame_codegens[-1].result_varies = result_varies
        self.result = cg.new_temp("t")

    def variables_to_load(self) -> list[Variable]:
        """Return all variables that the new code may load."""
        return [v for level in self.frame_codegens for v in level.variables_to_load()]

    @property
    def resume_slots(self) -> list[Any]:
        """Resume functions that the emitted code calls."""
        return [slot for level in self.frame_codegens for slot in level.resume_slots]

    def emit(self, emit_side_effects: Callable[[], None]) -> None:
        """Emit all code after the graph; ``emit_side_effects`` emits the side effects.

        Raises:
            Unsupported: one of the functions cannot be split in two here.
        """
        *outer, inner = self.frame_codegens
        root = self.frame_codegens[0]
        self.cg.store_root_cells(root.frame)
        for level in outer:
            self._materialize_live(level, level.op.index + 1)
            if level.handler is not None:
                self._materialize_live(level, level.handler.target)
        start = _first_index_of_call(inner)
        self._materialize_live(inner, start)
        for level in self.frame_codegens:
            level.check_exc_stack()
        emit_side_effects()
        for n in range(len(outer), 0, -1):
            self._emit_rest_of_frame(n, start)
        root.return_resume_call(ResumeTarget(root.op.index + 1, [*root.stack, self.result]))
        root.emit_handler()

    def _materialize_live(self, level: ResumeCodegen, index: int) -> None:
        """Reconstruct the variables that the function needs later.

        They must have their state of the moment when the graph ended.
        """
        level.reconstruct(level.stack)
        level.materialize(level.live_locals[index])
        if not level.is_root:
            level.reconstruct([*level.frame.cells.values()])

    def _emit_rest_of_frame(self, depth: int, start: int) -> None:
        """Run the rest of one call and store its return value in ``result``."""
        level, out = self.frame_codegens[depth], self.cg.body
        if depth == len(self.frame_codegens) - 1:
            self._emit_in_try_block(depth, ResumeTarget(start, [*level.stack]), is_broken=True)
            return
        self._emit_in_try_block(depth, ResumeTarget(level.op.index + 1, [*level.stack, self.result]))
        if level.handler is None:
            return
        joined = Label()
        out.jump(joined)
        out.label(level.handler_label)
        self._emit_in_try_block(depth, level.handler_target(level.pop_to_temp()))
        out.label(joined)

    def _emit_in_try_block(self, depth: int, outcome: ResumeTarget, *, is_broken: bool = False) -> None:
        """Continue one call inside the nearest try block of its callers."""
        out = self.cg.body
        catcher = next((level for level in reversed(self.frame_codegens[:depth]) if level.handler is not None), None)
        begin = None if catcher is None else out.try_begin(catcher.handler_label, 0)
        self.frame_codegens[depth].load_resume_result(outcome, is_broken=is_broken)
        if begin is not None:
            out.try_end(begin)
        out.store(self.result)


def _first_index_of_call(level: ResumeCodegen) -> int:
    """Return the index of the first instruction that belongs to the broken call."""
    index = level.op.index
    while index and level.decoded.ops[index - 1].opname in CALL_PREFIX_OPS:
        index -= 1
    return index
