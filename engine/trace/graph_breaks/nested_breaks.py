"""Graph breaks inside inlined calls: each frame of the call stack gets a resume function.

The graph ends inside the calls. The innermost resume function starts with the instruction that broke and
runs it as Python would. Its return value goes to the resume function of its caller, and so on up to the
root.

This follows nested graph breaks in torch._dynamo.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from bytecode import Label

from engine.bytecode.opcodes import CALL_PREFIX_OPS
from engine.trace.annotations import Frame, PyCodegen
from engine.trace.graph_breaks.resume_codegen import ResumeCodegen, ResumeTarget
from engine.trace.variables.base import Variable


class NestedBreakCodegen:
    """Emitter of a graph break inside inlined calls.

    ``frames`` are the root frame and the inlined frames, outermost first.
    """

    def __init__(self, cg: PyCodegen, frames: list[Frame], result_dims: frozenset[int]) -> None:
        self.cg = cg
        self.frame_codegens = [ResumeCodegen(cg, f, f.op, list(f.stack), is_root=n == 0) for n, f in enumerate(frames)]
        self.frame_codegens[-1].result_dims = result_dims
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
