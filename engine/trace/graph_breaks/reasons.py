"""The catalogue of reasons why a graph ends early or a frame is left to Python: stable ids, titles, explanations, remedies."""

from __future__ import annotations

from dataclasses import dataclass

from engine.ir.user_code_files import innermost_user_span
from engine.records.bytecode import Span
from engine.records.trace import BreakRecord
from engine.trace.graph_breaks.examples import BREAK_EXAMPLES, BreakExample


@dataclass(frozen=True)
class BreakReason:
    """One entry: what a person reads beside the particular case."""

    title: str
    explanation: str
    hints: tuple[str, ...] = ()


BREAK_REASONS: dict[str, BreakReason] = {
    "tensor-jump": BreakReason(
        "A branch depends on a tensor's value",
        "A graph is recorded once and holds one path; which path is right is known only when the tensor has been computed.",
        (
            "Use torch.where or torch.cond to compute with both outcomes.",
            "Move the condition out of the compiled function.",
        ),
    ),
    "data-dependent": BreakReason(
        "A tensor's value is needed in Python",
        "While tracing, tensors have shapes and dtypes but no values: the graph must run before Python can see the number.",
        ("Keep the value as a tensor.", "Read it after the compiled function, e.g. only every n-th step."),
    ),
    "dynamic-output": BreakReason(
        "An operator's output size depends on its input's values",
        "The size of the result is known only when the operator has run.",
        ("Use a form with a fixed size: torch.where, a mask, topk.",),
    ),
    "print": BreakReason(
        "Output is printed",
        "Printing must happen in Python, with real values, each time the function runs.",
        ("Remove the call, or print after the compiled function.",),
    ),
    "unknown-call": BreakReason(
        "A call that the tracer cannot look into",
        "The callable is written in C or changes state that a graph cannot hold, so Python has to run it.",
        ("Replace it by a torch operation.", "If it is pure and works on tensors, mark it with engine.allow_in_graph."),
    ),
    "outside-iterator": BreakReason(
        "An iterator from outside is asked for an item",
        "Its items are known only when it gives them, and asking moves it on: Python takes the item, and one graph serves every round of a loop.",
        ("Hand over the list, tuple or range itself.",),
    ),
    "disabled": BreakReason(
        "A function marked as disabled is called", "engine.disable asks for plain Python here.", ("Remove the mark.",)
    ),
    "asked": BreakReason("A graph break was asked for", "engine.graph_break was called here.", ("Remove the call.",)),
    "unsupported-operation": BreakReason(
        "An operation that the tracer does not know",
        "Its effect on these values cannot be foreseen while tracing, so Python has to run it.",
        ("Rewrite the line with plain Python values or torch operations.",),
    ),
    "unsupported-opcode": BreakReason(
        "A kind of statement that is left to Python", "The tracer has no rule for this bytecode instruction."
    ),
    "unsupported-argument": BreakReason(
        "A torch operation takes a value that cannot be put into a graph",
        "Graph nodes take tensors, numbers, strings, dtypes, devices and containers of them.",
        ("Pass a tensor or a plain number.",),
    ),
    "generator-frame": BreakReason(
        "The function is a generator",
        "A generator is suspended and continued by its caller, which a compiled frame cannot do.",
        ("Return a list, or compile the function that is called for each item.",),
    ),
    "async-frame": BreakReason(
        "The function is asynchronous", "It is run by an event loop.", ("Compile the synchronous part.",)
    ),
    "depth": BreakReason(
        "Calls are nested too deeply", "Tracing into calls has a limit, see engine.config.inline_depth."
    ),
    "budget": BreakReason(
        "The function runs too many instructions to trace",
        "Loops are unrolled while tracing; a budget keeps compile time finite, see engine.config.instruction_budget.",
        ("Compile the body of the loop instead of the loop.",),
    ),
    "raises": BreakReason(
        "The function raises an exception here",
        "The frame is left to Python so that the exception appears exactly as Python raises it.",
    ),
    "side-effect": BreakReason(
        "A side effect that cannot be replayed", "What the code changes could not be put back in place after the graph."
    ),
    "still-running": BreakReason(
        "A generator is half-way when the graph breaks later",
        "Where a generator stands that is handling an exception, or runs the line that breaks, cannot be handed to new code: Python runs it from its start.",
        ("Move the line that breaks out of the block or loop.", "Write the context manager as a class."),
    ),
    "global-state": BreakReason(
        "The function runs under a dispatch mode of torch's",
        "A dispatch mode gives operators another meaning, which a graph would not keep.",
    ),
    "fake-tensor": BreakReason(
        "The function is given a tensor without data",
        "A fake tensor stands for sizes and types only: there is nothing to compile, and Python gives the fake results.",
        ("Call it with real tensors to see it compiled.",),
    ),
    "internal": BreakReason(
        "The tracer failed",
        "This is a defect of the compiler, not of your code; the function runs as plain Python.",
        ("Please report it with this record.",),
    ),
}


def make_break_record(kind: str, what: str, stack: tuple[Span, ...], *, skipped: bool) -> BreakRecord:
    """A catalogue entry applied to one case, at the user's innermost line. ``stack`` is the user's, outermost first."""
    reason = BREAK_REASONS[kind]
    span = innermost_user_span(stack)
    example = BREAK_EXAMPLES.get(kind, _EMPTY_EXAMPLE)
    return BreakRecord(
        kind,
        reason.title,
        what,
        reason.explanation,
        reason.hints,
        span,
        stack,
        skipped,
        example_before=example.before,
        example_after=example.after,
    )


_EMPTY_EXAMPLE = BreakExample("", "")
