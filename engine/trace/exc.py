"""Exceptions of the tracer: graph break, skip, restart, and exceptions of user code."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import CodeType, MappingProxyType

from engine.ir.introspection.torch_global_state import error_on_graph_break
from engine.ir.traced_frame import TracedFrame
from engine.records.bytecode import Span
from engine.trace.annotations import Variable


class TracerException(Exception):
    """Base class of exceptions that never leave the tracer."""


@dataclass(frozen=True)
class InlinedBreakpoint:
    """A point inside inlined calls at which the graph can end.

    ``instruction_number`` counts all traced instructions; ``depth`` is the number of calls below the root
    frame.
    """

    instruction_number: int
    depth: int
    code: CodeType
    offset: int


class BreakReason(TracerException):
    """A reason why Python runs code; ``kind`` is an id in ``reasons.BREAK_REASONS``.

    ``stack`` is the user's call stack, outermost frame first; it is empty until a handler fills it in.
    """

    def __init__(self, kind: str, what: str, stack: tuple[Span, ...]) -> None:
        super().__init__(f"{kind}: {what}")
        self.kind = kind
        self.what = what
        self.stack = stack
        self.inlined_breakpoint: InlinedBreakpoint | None = None
        """The innermost instruction where the graph can end; None if it is one of the root frame."""


class Unsupported(BreakReason):
    """Unsupported code: the graph ends at the root frame's current instruction."""

    def __init__(self, kind: str, what: str, *, created_at: int = 0, stack: tuple[Span, ...] = ()) -> None:
        super().__init__(kind, what, stack)
        self.created_at = created_at
        """Number of the root instruction that created the object which prevents resuming; else 0.

        Python can run that instruction instead.
        """
        self.result_dims: frozenset[int] = frozenset()
        """Dimensions of that instruction's result, a tensor, that depend on values."""
        self.created_inside: InlinedBreakpoint | None = None
        """The point inside calls that created it, if the graph can end there."""
        self.error_on_graph_break = kind != "raises" and error_on_graph_break()
        """True if the user requested that graph breaks of this code be errors."""


@dataclass(frozen=True)
class BreakGraph:
    """Context manager: these errors break the graph, for the reason that is given."""

    kind: str
    what: str
    errors: type[Exception] | tuple[type[Exception], ...]

    def __enter__(self) -> None: ...

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, self.errors):
            raise Unsupported(self.kind, self.what) from error


class SkipFrame(BreakReason):
    """The whole frame runs as plain Python.

    ``also`` is the id of the reason why no resume function could continue after the graph break ``kind``.
    """

    def __init__(self, kind: str, what: str, also: str = "", *, stack: tuple[Span, ...] = ()) -> None:
        super().__init__(kind, what, stack)
        self.also = also


class UserException(TracerException):
    """The traced code raised ``exception``, a variable. Handlers in traced code may catch it."""

    def __init__(self, value: Variable) -> None:
        super().__init__(value.describe())
        self.exception = value
        self.is_unhandled_yet = True
        """True if no frame has handled it yet."""


class RestartTracing(TracerException):
    """Trace the frame again from its start and break before an instruction, for ``reason``.

    ``break_before`` is the number of the root frame's instruction; 0 means no break.
    """

    def __init__(
        self,
        break_before: int,
        reason: Unsupported,
        *,
        hide_compiler: bool = False,
        inlined_breakpoint: InlinedBreakpoint | None = None,
        rng_mode: str = "",
        dynamic_dims: Mapping[str, frozenset[int]] = MappingProxyType({}),
    ) -> None:
        super().__init__(str(reason))
        self.break_before = break_before
        self.reason = reason
        self.hide_compiler = hide_compiler
        """True to hide the compiler: ``is_compiling()`` returns False in the next attempt.

        The frame has nothing to compile, or its code for a compiler raises.
        """
        self.inlined_breakpoint = inlined_breakpoint
        """Point inside the calls of that instruction where the graph ends instead."""
        self.rng_mode = rng_mode
        """Treatment of Python's random numbers: "known", "inputs", or "" if undecided.

        "known" guards the RNG states; "inputs" makes the random numbers graph inputs.
        """
        self.dynamic_dims = dynamic_dims
        """Dimensions of arguments that are symbols in the next attempt, by source expression."""


class TracingFinished(TracerException):
    """The graph ended inside inlined calls; ``traced`` is the result."""

    def __init__(self, traced: TracedFrame) -> None:
        super().__init__()
        self.traced = traced
