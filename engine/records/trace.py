"""What the tracer did with one frame."""

from __future__ import annotations

from dataclasses import dataclass

from engine.records.base import Record
from engine.records.bytecode import Instruction, Span


@dataclass(frozen=True, slots=True)
class BreakRecord(Record):
    """Why a graph ended before the function did, or why a frame was left to Python.

    ``kind`` is the catalogue's stable id, ``title`` one line, ``what`` names the user's values, ``why`` the reason, ``remedies`` what to do.
    ``skipped`` says that the whole frame ran as Python rather than being resumed.
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
    """How many times this same break was met."""
    example_before: str = ""
    """The shortest function with a break of this kind, and ``after`` the same without it; both empty where there is no example."""
    example_after: str = ""


@dataclass(frozen=True, slots=True)
class StepRecord(Record):
    """One instruction as the tracer executed it (level "steps" only). Stack and locals are short descriptions, top of stack last.

    ``stack`` is the executing frame's, once the instruction is done: for one that inlined a call, after the call returned. Nodes, guards and effects
    are each told once, by the last instruction that had started when they appeared. A frame's first step has all its locals, later ones what changed;
    a local that was deleted is empty.
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
    """"inline", "return", "raise" (caught by the traced code), "break" or nothing."""
    frame: int = 0
    """Number of the activation that executed it, in the order in which they were entered."""
    stack_nodes: tuple[str, ...] = ()
    """For each value of ``stack`` the graph node that computes it, empty where there is none; or nothing at all."""
    locals_nodes: dict[str, str] | None = None
    """The same for those of ``locals_changed`` that are computed by a node."""


@dataclass(frozen=True, slots=True)
class InlinedCall(Record):
    """A Python function whose body was traced as part of its caller."""

    name: str
    caller: Span | None
    file: str
    first_line: int


@dataclass(frozen=True, slots=True)
class SymbolAssumption(Record):
    """Something taken for granted of a symbol, and the user's line that made it so."""

    text: str
    why: str = ""
    span: Span | None = None


@dataclass(frozen=True, slots=True)
class TracedSymbolRecord(Record):
    """The story of one size or number that was made a symbol.

    ``places`` are where it is read (``x.shape[0]``), ``hint`` its value in the call that was traced, ``low`` and ``high`` the values that the compiled
    code serves (None: no bound). ``became`` is what it was found to equal, empty while it is free: then ``settled`` says where.
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
    def constraint(self) -> str:
        """Which values the compiled code serves, as one sentence, with the line that limits them: what an export would have to promise."""
        place = " = ".join(self.sources)
        limits = [a for a in (*self.assumptions, self.specialized_by) if a is not None and a.span is not None]
        at = f" ({limits[-1].span.file}:{limits[-1].span.line})" if limits and limits[-1].span else ""
        if self.specialized_to:
            if self.why != "marked dynamic":
                return f"{place} is always {self.specialized_to}: the code allows nothing else{at}."
            remedy = "Remove the mark, or what compares the size."
            return f"{place} is marked dynamic, but the code works for {self.specialized_to} only{at}. {remedy}"
        parts = [
            *([] if self.low is None else [f"at least {self.low}"]),
            *([] if self.high is None else [f"at most {self.high}"]),
        ]
        told = f"{place} may be any size" + (f" of {' and '.join(parts)}" if parts else "")
        return f"{told}{at}." if self.assumptions else f"{told}."


@dataclass(frozen=True, slots=True)
class DiscardedAttempt(Record):
    """A run of the tracer over the frame that was given up at something it could not follow, and undone: the next run breaks there.

    ``operations``, ``guards`` and ``effects`` (in words) are what it had come to by then; ``switched`` names the pieces of torch's global state
    that stood otherwise than at its start and were put back.
    """

    kind: str
    context: str
    span: Span | None = None
    stack: tuple[Span, ...] = ()
    operations: int = 0
    guards: int = 0
    side_effects: tuple[str, ...] = ()
    restored_state: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class TraceRecord(Record):
    """The outcome of tracing one frame once."""

    instructions: tuple[Instruction, ...] = ()
    """Of the user's code as CPython compiled it."""
    modified_instructions: tuple[Instruction, ...] = ()
    """Of the code that runs instead."""
    inlined: tuple[InlinedCall, ...] = ()
    breaks: tuple[BreakRecord, ...] = ()
    side_effects: tuple[str, ...] = ()
    """Side effects replayed after the graph, in order, in words."""
    steps: tuple[StepRecord, ...] = ()
    symbols: tuple[TracedSymbolRecord, ...] = ()
    """Sizes and numbers that were made symbols."""
    discarded_attempts: tuple[DiscardedAttempt, ...] = ()
    """Runs of the tracer that were given up before the one that is told here, in order."""
