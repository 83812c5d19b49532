"""Records of tracing one frame: graph breaks, steps, inlined calls, symbols, attempts."""

from __future__ import annotations

import re

from engine.records.base import Record
from engine.records.bytecode import Instruction, Span


class BreakRecord(Record):
    """A graph break, or the reason why a frame runs as Python.

    ``kind``: stable id in the catalog of breaks. ``title``: one line. ``context``: the user's values.
    ``explanation``: the reason. ``hints``: what to do. ``skips_frame``: the whole frame ran as Python,
    without a resume function.
    """

    kind: str
    title: str
    context: str
    explanation: str = ""
    hints: tuple[str, ...] = ()
    span: Span | None = None
    stack: tuple[Span, ...] = ()
    skips_frame: bool = False
    count: int = 1
    """Number of times that this break occurred."""
    example_before: str = ""
    """Shortest function with this break; ``example_after`` is its fix; both may be empty."""
    example_after: str = ""


class StepRecord(Record):
    """One instruction as the tracer executed it (level "steps" only).

    Stack and locals are short descriptions, top of stack last. ``stack`` is the executing frame's after the
    instruction; if it inlined a call, after the return. Nodes, guards and side effects are recorded once, by
    the last instruction started before they were added. A frame's first step has all its locals, later steps
    the changed ones; a deleted local is empty.
    """

    index: int
    depth: int
    code: str
    offset: int
    opname: str
    argument: str
    span: Span | None
    stack: tuple[str, ...]
    locals_changed: dict[str, str]
    nodes: tuple[str, ...] = ()
    guards: tuple[str, ...] = ()
    side_effects: tuple[str, ...] = ()
    event: str = ""
    """"inline", "return", "raise" (caught by the traced code), "break", or empty."""
    frame: int = 0
    """Number of the frame activation, in the order of entry."""
    stack_nodes: tuple[str, ...] = ()
    """Graph node of each value in ``stack``, empty for values without one; or an empty tuple."""
    locals_nodes: dict[str, str] | None = None
    """Graph nodes of the values in ``locals_changed`` that have one."""


class InlinedCall(Record):
    """A Python function that was inlined into its caller."""

    name: str
    caller: Span | None
    file: str
    first_line: int
    instructions: tuple[Instruction, ...] = ()
    """Its bytecode, with the first call of the function that was inlined."""


class SymbolAssumption(Record):
    """A guard or a specialization of a symbol, and the user's line that caused it."""

    text: str
    why: str = ""
    span: Span | None = None


CHANGED_SIZE = "its size changed between calls"
"""Reason why a size is a symbol."""


class TracedSymbolRecord(Record):
    """One symbol of the tracer.

    ``sources``: where it is read (``x.shape[0]``). ``hint``: its value in the traced call. ``low``, ``high``:
    its value range (None: unbounded). ``specialized_to``: the number it was specialized to, or the expression of
    other symbols that it equals; empty if none. ``specialized_by``: the user's line of it.
    """

    name: str
    sources: tuple[str, ...]
    hint: str
    why: str
    low: int | None = None
    high: int | None = None
    assumptions: tuple[SymbolAssumption, ...] = ()
    specialized_to: str = ""
    specialized_by: SymbolAssumption | None = None

    @property
    def is_constant(self) -> bool:
        """True if the symbol was specialized to a number."""
        return bool(self.specialized_to) and not re.search(r"[a-z]\d", self.specialized_to)

    @property
    def constraint(self) -> str:
        """The symbol's supported values as one sentence, with the user's line that restricts them."""
        symbol_text = " = ".join(self.sources)
        limits = [a for a in (*self.assumptions, self.specialized_by) if a is not None and a.span is not None]
        at = f" ({limits[-1].span.file}:{limits[-1].span.line})" if limits and limits[-1].span else ""
        if self.specialized_to and not self.is_constant:
            return f"{symbol_text} is always {self.specialized_to}: the code needs equal sizes{at}."
        if self.specialized_to:
            if self.why != "marked dynamic":
                return f"{symbol_text} is always {self.specialized_to}: the code allows nothing else{at}."
            advice = "Remove the mark, or the code that compares the size."
            return f"{symbol_text} is marked dynamic, but the code works for {self.specialized_to} only{at}. {advice}"
        parts = [
            *([] if self.low is None else [f"at least {self.low}"]),
            *([] if self.high is None else [f"at most {self.high}"]),
        ]
        sentence = f"{symbol_text} may be any size" + (f" of {' and '.join(parts)}" if parts else "")
        return f"{sentence}{at}." if self.assumptions else f"{sentence}."


class DiscardedAttempt(Record):
    """A discarded tracing attempt.

    Tracing stopped at an unsupported operation and was rolled back. The next attempt breaks the graph there.
    ``operations``, ``guards`` and ``side_effects``: the state at that time.
    ``restored_state``: pieces of torch's global state that the attempt had changed and that were restored.
    """

    kind: str
    context: str
    span: Span | None = None
    stack: tuple[Span, ...] = ()
    operations: int = 0
    guards: int = 0
    side_effects: tuple[str, ...] = ()
    restored_state: tuple[str, ...] = ()


class TraceRecord(Record):
    """Result of tracing one frame."""

    instructions: tuple[Instruction, ...] = ()
    """Bytecode of the user's code."""
    modified_instructions: tuple[Instruction, ...] = ()
    """Modified bytecode."""
    inlined: tuple[InlinedCall, ...] = ()
    breaks: tuple[BreakRecord, ...] = ()
    side_effects: tuple[str, ...] = ()
    """Side effects applied after the graph, in order, as text."""
    steps: tuple[StepRecord, ...] = ()
    symbols: tuple[TracedSymbolRecord, ...] = ()
    """Sizes and numbers that became symbols."""
    discarded_attempts: tuple[DiscardedAttempt, ...] = ()
    """Discarded attempts before this result, in order."""
