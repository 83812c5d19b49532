"""How tracing leaves its normal way: a break, a frame left to Python, an exception of the user's."""

from __future__ import annotations

from dataclasses import dataclass
from types import CodeType
from typing import TYPE_CHECKING

from engine.ir.introspection.torch_global_state import error_on_graph_break
from engine.records.bytecode import Span

if TYPE_CHECKING:
    from engine.ir.traced_frame import TracedFrame
    from engine.trace.variables.base import Variable


class TracerException(Exception):
    """Base of what is raised inside the tracer and never leaves it."""


@dataclass(frozen=True)
class InlinedBreakpoint:
    """Where a graph can end inside calls that are traced inline: at the ``executed``-th instruction of all, ``depth`` calls below the root."""

    instruction_number: int
    depth: int
    code: CodeType
    offset: int


class Unsupported(TracerException):
    """Something that cannot be traced: ends the graph at the root frame's current instruction. ``kind`` is an id in ``breaks.CATALOGUE``."""

    def __init__(self, kind: str, what: str) -> None:
        super().__init__(f"{kind}: {what}")
        self.kind = kind
        self.what = what
        self.stack: tuple[Span, ...] = ()
        self.created_at = 0
        """Which of the root frame's instructions made what is in the way of resuming: Python can run that one instead."""
        self.inlined_breakpoint: InlinedBreakpoint | None = None
        """The innermost instruction where the graph can end, if that is not one of the root frame."""
        self.error_on_graph_break = kind != "raises" and error_on_graph_break()
        """Whether the user asked, for the code that met it, that breaks be errors."""


class SkipFrame(TracerException):
    """The whole frame is left to Python. ``kind`` is an id in ``breaks.CATALOGUE``."""

    def __init__(self, kind: str, what: str) -> None:
        super().__init__(f"{kind}: {what}")
        self.kind = kind
        self.what = what
        self.stack: tuple[Span, ...] = ()


class UserException(TracerException):
    """The traced code raised; ``value`` is the exception as a value. Handlers in traced code may catch it."""

    def __init__(self, value: Variable) -> None:
        super().__init__(value.describe())
        self.exception = value
        self.is_unhandled_yet = True
        """Whether no frame has seen it yet."""


class RestartTracing(TracerException):
    """Trace the frame again from its start, and break before the root frame's ``executed``-th instruction, for ``reason``; 0: do not."""

    def __init__(
        self,
        executed: int,
        reason: Unsupported,
        *,
        as_eager: bool = False,
        cut: InlinedBreakpoint | None = None,
        draws: str = "",
    ) -> None:
        super().__init__(str(reason))
        self.break_before = executed
        self.reason = reason
        self.hide_compiler = as_eager
        """Whether the frame has nothing for a graph, so that it learns of no compiler."""
        self.inlined_breakpoint = cut
        """Where inside the calls of that instruction to break instead."""
        self.rng_mode = draws
        """What is drawn from Python's random generators: "known", with their states guarded, or "inputs" of the graph; empty: not decided."""


class TracingFinished(TracerException):
    """The graph ended inside calls traced inline; ``traced`` is the outcome."""

    def __init__(self, traced: TracedFrame) -> None:
        super().__init__()
        self.traced = traced
