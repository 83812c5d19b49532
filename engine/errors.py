"""Errors shown to users, one class per failure; messages state the problem and the fix."""

from __future__ import annotations

import traceback

from engine.records.bytecode import Span
from engine.records.trace import BreakRecord


class EngineError(RuntimeError):
    """Base class of all errors raised on purpose.

    ``RuntimeError`` is also the base of ``torch.compile``'s errors. ``stack`` is the user's call stack, outermost
    call first, if the error concerns user code; the traceback shows the engine's frames.
    """

    stack: tuple[Span, ...] = ()

    @property
    def real_stack(self) -> traceback.StackSummary:
        """The user's stack as a ``traceback.StackSummary``."""
        return traceback.StackSummary.from_list([(s.file, s.line, "", None) for s in self.stack])


class UnknownBackend(EngineError, ValueError):
    """Unknown backend name, for example ``engine.compile(f, backend="tritn")``."""

    def __init__(self, name: object, names: tuple[str, ...]) -> None:
        super().__init__(
            f"There is no backend {name!r}: choose one of {', '.join(names)}, or pass a callable (graph_module, example_inputs) -> callable."
        )


class UnknownTarget(EngineError, ValueError):
    """Unknown target, for example ``target="h100"`` instead of ``target="cuda:90"``."""

    def __init__(self, name: object, names: tuple[str, ...]) -> None:
        super().__init__(f"There is no target {name!r}: choose one of {', '.join(names)}.")


class BadArgument(EngineError, ValueError):
    """Invalid argument of the public API."""


class PlanFailed(EngineError):
    """Failure of a program while ``engine.plan`` runs it as one rank."""

    def __init__(self, rank: int, reason: str) -> None:
        super().__init__(f"The program cannot be planned as rank {rank}: {reason}")


class GraphBreak(EngineError):
    """Graph break under ``fullgraph=True``, with the reason, the user's line and hints.

    ``record`` is the record of the break with the user's stack, outermost call first.
    """

    def __init__(self, record: BreakRecord, pointed: str) -> None:
        self.record = record
        self.stack = record.stack
        hint_lines = "".join(f"\n  - {hint}" for hint in record.hints)
        what_to_do = f"\nWhat to do:{hint_lines}" if hint_lines else ""
        super().__init__(f"{record.title}: {record.context}\n{pointed}\n{record.explanation}{what_to_do}")


class ConstraintViolation(EngineError):
    """Code specializes a dimension that ``torch._dynamo.mark_dynamic`` marked.

    ``stack`` is the line that needed the size.
    """

    def __init__(self, tensor: str, dim: int, size: int, stack: tuple[Span, ...] = ()) -> None:
        self.stack = stack
        where = f" at line {stack[0].line} of {stack[0].file}" if stack else ""
        super().__init__(
            f"Dimension {dim} of {tensor} is marked as dynamic, but the code needs it to be {size}{where}. "
            "Remove the mark, use torch._dynamo.maybe_mark_dynamic, or write the code for any size."
        )


class SizeOutOfRange(ConstraintViolation):
    """A size or number is outside of the range of ``mark_dynamic`` or ``dynamic_shapes``.

    ``dim`` -1 is a number.
    """

    def __init__(self, tensor: str, dim: int, size: int, low: int | None, high: int | None) -> None:
        self.stack = ()
        bounds = " and ".join(f"{name}={bound}" for name, bound in (("min", low), ("max", high)) if bound is not None)
        EngineError.__init__(
            self,
            f"{f'Dimension {dim} of ' if dim >= 0 else ''}{tensor} is {size}, but its range is {bounds}. "
            "Widen the range, or remove it.",
        )


class BackendError(EngineError):
    """Failure of a user's backend.

    Under ``engine.config.suppress_errors`` it is recorded and the graph runs eagerly, except with ``fullgraph``.
    """

    def __init__(self, backend: str, reason: str, stack: tuple[Span, ...] = ()) -> None:
        self.stack = stack
        super().__init__(f"The backend {backend!r} failed: {reason}")


class KernelBuildError(EngineError):
    """A kernel cannot be built for the current GPU.

    It does not compile, or needs too much shared memory in all configurations. ATen then computes its nodes.
    ``nodes``: ids of the ATen nodes that the kernel computes.
    """

    def __init__(self, kernel: str, reason: BaseException, nodes: tuple[str, ...] = ()) -> None:
        lines = [line for line in str(reason).splitlines() if line.strip()]
        self.kernel = kernel
        self.nodes = nodes
        super().__init__(
            f"The kernel {kernel} could not be built: {type(reason).__name__}: {lines[0] if lines else ''}".rstrip(": ")
        )


class RecompileLimit(EngineError):
    """Recompile limit reached under ``fullgraph=True``.

    Without ``fullgraph`` the function falls back to Python.
    """

    def __init__(self, name: str, limit: int, reason: str, stack: tuple[Span, ...] = ()) -> None:
        self.stack = stack
        super().__init__(
            f"{name} was compiled {limit} times, which is the recompile limit. The last reason was: {reason}"
        )


class RecompileForbidden(EngineError):
    """A call would compile, which a switch of ``torch.compile`` that the user set forbids."""

    def __init__(self, name: str, switch: str, reason: str) -> None:
        super().__init__(
            f"A call of {name} would compile, but {switch} is set. Reason: {reason.rstrip('.')}. "
            f"Warm the function up with such inputs first, mark what changes as dynamic, or turn {switch} off."
        )


class ExpectationFailed(EngineError, AssertionError):
    """More graphs, graph breaks or recompiles than ``engine.expect`` allows."""


class DebugAssertionError(EngineError, AssertionError):
    """Compiled code was called with inputs it was not compiled for; its guards passed.

    Raised if ``engine.config.debug_assertions`` is set.
    """

    def __init__(self, fault: str) -> None:
        super().__init__(
            f"Compiled code was called with inputs that it was not compiled for: {fault}. This is a bug in the guards of the compiler. Please report it."
        )


class Unavailable(EngineError):
    """Missing requirement (a GPU, Triton, a Graphviz renderer); the message has how to get it."""


class NotATrace(EngineError, ValueError):
    """Not a torch trace: ``engine.load_torch_trace`` needs what ``TORCH_TRACE=folder`` wrote."""


def source_with_caret(text: str, span: Span | None) -> str:
    """Return the source line of ``span`` with carets below its columns; empty if unknown."""
    if span is None:
        return ""
    lines = text.splitlines()
    if not 0 < span.line <= len(lines):
        return f"  {span.file}:{span.line}"
    line = lines[span.line - 1]
    head = f"  {span.file}:{span.line}\n    {line}"
    if span.column < 0:
        return head
    end = span.end_column if span.end_line in (-1, span.line) and span.end_column > span.column else len(line)
    return f"{head}\n    {' ' * span.column}{'^' * max(1, end - span.column)}"


class NotReproduced(EngineError):
    """No script shows what was recorded (``engine.reproducer``); the message says why."""


class PassUndone(UserWarning):
    """A registered pass raised or broke a rule, and was undone (``engine.register_pass``)."""


class WrongResult(UserWarning):
    """Compiled results differ from eager's (``engine.config.verify_correctness``)."""


def error_line(error: BaseException) -> str:
    """Return the first line of an error's message; the class name if it has none.

    The line's period is left out.
    """
    lines = str(error).strip().splitlines()
    return lines[0].rstrip(".") if lines else type(error).__name__


def named_error_line(error: BaseException) -> str:
    """Return an error's class name and, if there is a message, its first line."""
    name, line = type(error).__name__, error_line(error)
    return name if line == name else f"{name}: {line}"
