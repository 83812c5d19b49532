"""One class per failure that a person can meet. Messages are whole sentences that say what was wrong and what to do."""

from __future__ import annotations

import traceback

from engine.records.bytecode import Span
from engine.records.trace import BreakRecord


class EngineError(Exception):
    """Base of all errors raised on purpose.

    ``stack`` is the user's own call stack where it has to do with a place in the user's code, outermost call first: the traceback shows ours.
    """

    stack: tuple[Span, ...] = ()

    @property
    def real_stack(self) -> traceback.StackSummary:
        """The user's stack as the ``traceback`` module has it."""
        return traceback.StackSummary.from_list([(s.file, s.line, "", None) for s in self.stack])


class UnknownBackend(EngineError, ValueError):
    """``engine.compile(f, backend="tritn")``: write ``backend="triton"``."""

    def __init__(self, name: object, known: tuple[str, ...]) -> None:
        super().__init__(
            f"There is no backend {name!r}: choose one of {', '.join(known)}, or pass a callable (graph_module, example_inputs) -> callable."
        )


class UnknownTarget(EngineError, ValueError):
    """``target="h100"``: write ``target="cuda:90"``."""

    def __init__(self, name: object, known: tuple[str, ...]) -> None:
        super().__init__(f"There is no target {name!r}: choose one of {', '.join(known)}.")


class BadArgument(EngineError, ValueError):
    """An argument of the public API has the wrong kind."""


class GraphBreak(EngineError):
    """Under ``fullgraph=True`` something could not be traced: the break's text, the user's line over a caret, and what to do.

    ``record`` is the break with the user's stack, outermost call first.
    """

    def __init__(self, record: BreakRecord, pointed: str) -> None:
        self.record = record
        self.stack = record.stack
        remedies = "".join(f"\n  - {remedy}" for remedy in record.hints)
        what_to_do = f"\nWhat to do:{remedies}" if remedies else ""
        super().__init__(f"{record.title}: {record.context}\n{pointed}\n{record.explanation}{what_to_do}")


class BackendError(EngineError):
    """A backend failed on a graph under ``fullgraph=True``; otherwise the failure is recorded and the graph runs in eager mode."""

    def __init__(self, backend: str, reason: str, stack: tuple[Span, ...] = ()) -> None:
        self.stack = stack
        super().__init__(f"The backend {backend!r} failed: {reason}")


class KernelBuildError(EngineError):
    """A kernel does not compile for the GPU at hand, or needs more shared memory than it has in any configuration; ATen then does its work.

    ``nodes`` are the ids of the ATen nodes that it computes.
    """

    def __init__(self, kernel: str, reason: BaseException, nodes: tuple[str, ...] = ()) -> None:
        lines = [line for line in str(reason).splitlines() if line.strip()]
        self.kernel = kernel
        self.nodes = nodes
        super().__init__(
            f"The kernel {kernel} could not be built: {type(reason).__name__}: {lines[0] if lines else ''}".rstrip(": ")
        )


class RecompileLimit(EngineError):
    """Under ``fullgraph=True`` a function met its recompile limit; otherwise it is left to Python from then on."""

    def __init__(self, name: str, limit: int, reason: str, stack: tuple[Span, ...] = ()) -> None:
        self.stack = stack
        super().__init__(
            f"{name} was compiled {limit} times already, the recompile limit; the last reason was: {reason}"
        )


class ExpectationFailed(EngineError, AssertionError):
    """``engine.expect`` saw more graphs, breaks or recompiles than it was told to."""


class DebugAssertionError(EngineError, AssertionError):
    """``engine.config.debug_assertions``: compiled code was called with something that it was not compiled for, past its guards."""

    def __init__(self, fault: str) -> None:
        super().__init__(
            f"Compiled code was called with what it was not compiled for: {fault}. This is a fault of the compiler's guards: please report it."
        )


class Unavailable(EngineError):
    """Something that this machine lacks (a GPU, Triton, a Graphviz renderer); says what and how to get it."""


class NotATrace(EngineError, ValueError):
    """``engine.load_torch_trace("notes.txt")``: give it a file or folder that ``TORCH_TRACE=folder python train.py`` wrote."""


def source_with_caret(text: str, span: Span | None) -> str:
    """The source line of ``span`` out of ``text``, with carets under its columns; empty when unknown."""
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


class WrongResult(UserWarning):
    """``engine.config.verify_correctness``: a compiled graph gave other results than the same graph run operator by operator."""
