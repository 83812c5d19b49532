"""Instruction numbers of the interpreter loop, and the callbacks that run at them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from engine.trace.annotations import Frame


def _do_nothing(frame: Frame) -> None:
    pass


class InstructionCounter:
    """Counts the traced instructions; holds the breakpoint and the hook of the loop."""

    def __init__(self) -> None:
        self.instruction_count = 0
        self.root_instruction_number = 0
        """Number of root frame instructions that were started."""
        self.breakpoint_at = 0
        """Instruction number at which ``on_breakpoint`` is called with the frame to end the graph."""
        self.on_breakpoint: Callable[[Frame], None] = _do_nothing
        self.instruction_hook: Any = None
        """Hook called around each instruction if steps are recorded."""

    def release(self) -> None:
        """Release the callback, which references the tracing attempt."""
        self.on_breakpoint = _do_nothing
