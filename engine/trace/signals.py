"""How tracing leaves its normal way: a break, a frame left to Python, an exception of the user's."""

from __future__ import annotations

from dataclasses import dataclass
from types import CodeType
from typing import TYPE_CHECKING

from engine.ir.global_state import breaks_raise
from engine.records.bytecode import Span

if TYPE_CHECKING:
    from engine.ir.frame import TracedFrame
    from engine.trace.values.base import Value


class TraceSignal(Exception):
    """Base of what is raised inside the tracer and never leaves it."""


@dataclass(frozen=True)
class Cut:
    """Where a graph can end inside calls that are traced inline: at the ``executed``-th instruction of all, ``depth`` calls below the root."""

    executed: int
    depth: int
    code: CodeType
    offset: int


class Unsupported(TraceSignal):
    """Something that cannot be traced: ends the graph at the root frame's current instruction. ``kind`` is an id in ``breaks.CATALOGUE``."""

    def __init__(self, kind: str, what: str) -> None:
        super().__init__(f"{kind}: {what}")
        self.kind = kind
        self.what = what
        self.stack: tuple[Span, ...] = ()
        self.born = 0
        """Which of the root frame's instructions made what is in the way of resuming: Python can run that one instead."""
        self.cut: Cut | None = None
        """The innermost instruction where the graph can end, if that is not one of the root frame."""
        self.is_error = kind != "raises" and breaks_raise()
        """Whether the user asked, for the code that met it, that breaks be errors."""


class Skip(TraceSignal):
    """The whole frame is left to Python. ``kind`` is an id in ``breaks.CATALOGUE``."""

    def __init__(self, kind: str, what: str) -> None:
        super().__init__(f"{kind}: {what}")
        self.kind = kind
        self.what = what
        self.stack: tuple[Span, ...] = ()


class UserException(TraceSignal):
    """The traced code raised; ``value`` is the exception as a value. Handlers in traced code may catch it."""

    def __init__(self, value: Value) -> None:
        super().__init__(value.describe())
        self.value = value
        self.is_new = True
        """Whether no frame has seen it yet."""


class Restart(TraceSignal):
    """Trace the frame again from its start, and break before the root frame's ``executed``-th instruction, for ``reason``; 0: do not."""

    def __init__(
        self,
        executed: int,
        reason: Unsupported,
        *,
        as_eager: bool = False,
        cut: Cut | None = None,
        draws: str = "",
    ) -> None:
        super().__init__(str(reason))
        self.executed = executed
        self.reason = reason
        self.as_eager = as_eager
        """Whether the frame has nothing for a graph, so that it learns of no compiler."""
        self.cut = cut
        """Where inside the calls of that instruction to break instead."""
        self.draws = draws
        """What is drawn from Python's random generators: "known", with their states guarded, or "inputs" of the graph; empty: not decided."""


class Finished(TraceSignal):
    """The graph ended inside calls traced inline; ``traced`` is the outcome."""

    def __init__(self, traced: TracedFrame) -> None:
        super().__init__()
        self.traced = traced
