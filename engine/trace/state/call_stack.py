"""Current position of the tracer: call stack of the traced code, instruction number."""

from __future__ import annotations

import sys
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from engine.bytecode.resume_functions import resume_info
from engine.ir.introspection.torch_global_state import GLOBAL_STATES
from engine.ir.sources.base import Source
from engine.records.bytecode import Span
from engine.records.trace import InlinedCall
from engine.trace.annotations import Frame, Variable


class CallStack:
    """Active frames, the root first, with inlined calls and generators that are still open."""

    def __init__(self) -> None:
        self.frames: list[Frame] = []
        self.inlined_calls: dict[tuple[str, int, Span | None], InlinedCall] = {}
        self.direct_callee: Variable | None = None
        """Callee of a call instruction that leaves the return value on the stack unchanged."""
        self.open_generators: list[Any] = []
        """Started generators with exception handlers: closing one runs code."""
        self.called_in_except_block: bool = GLOBAL_STATES["handling"].read()
        """True if the root frame was called while an exception was being handled."""
        self.recursion_limit = sys.getrecursionlimit()
        self._remaining_depth = 0

    def may_be_from_before_break(self, source: Source) -> bool:
        """Return True if the function may have created the object before a graph break."""
        return source.chain()[0].is_argument_link and resume_info(self.frames[0].code) is not None

    def remaining_depth(self) -> int:
        """Return the call depth that is left before Python would raise RecursionError."""
        if not self._remaining_depth:
            used = sum(1 for _ in traceback.walk_stack(sys._getframe(1)))
            self._remaining_depth = max(self.recursion_limit - used, 50)
        return self._remaining_depth

    def user_stack(self) -> tuple[Span, ...]:
        """Return the user's call stack, outermost first."""
        return self.frames[-1].user_stack() if self.frames else ()


def _do_nothing(frame: Frame) -> None:
    pass


@dataclass
class LoopPasses:
    """Number of traced passes of a loop over an iterator, and the counts when it began."""

    iterator_id: int
    instructions: int
    operations: int
    passes: int = 0


class InstructionCounter:
    """Counts the traced instructions; holds the breakpoint and the hook of the loop."""

    def __init__(self) -> None:
        self.instruction_count = 0
        self.root_instruction_number = 0
        """Number of root frame instructions that were started."""
        self.loops: dict[tuple[int, int], LoopPasses] = {}
        """Loops that are running, by ``id`` of the frame and index of their FOR_ITER."""
        self.breakpoint_at = 0
        """Instruction number at which ``on_breakpoint`` is called with the frame to end the graph."""
        self.on_breakpoint: Callable[[Frame], None] = _do_nothing
        self.instruction_hook: Any = None
        """Hook called around each instruction if steps are recorded."""

    def release(self) -> None:
        """Release the callback, which references the tracing attempt."""
        self.on_breakpoint = _do_nothing
