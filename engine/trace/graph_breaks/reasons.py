"""Catalog of graph break and skip reasons: stable ids, titles, explanations, hints."""

from __future__ import annotations

from dataclasses import dataclass

from engine.ir.user_code_files import innermost_user_span
from engine.records.bytecode import Span
from engine.records.trace import BreakRecord
from engine.trace.graph_breaks.examples import BREAK_EXAMPLES, BreakExample


@dataclass(frozen=True)
class BreakReason:
    """Catalog entry: the general text shown beside the details of one break."""

    title: str
    explanation: str
    hints: tuple[str, ...] = ()


BREAK_REASONS: dict[str, BreakReason] = {
    "tensor-jump": BreakReason(
        "A branch depends on a tensor's value",
        "A graph holds one path. The tensor's value selects the path, and it is known only after the graph has run.",
        (
            "Use torch.where to compute both outcomes, or torch.cond.",
            "Move the condition out of the compiled function.",
        ),
    ),
    "data-dependent": BreakReason(
        "A tensor's value is needed in Python",
        "While tracing, tensors have shapes and dtypes but no values. The graph must run before Python can use the number.",
        (
            "Leave the value in a tensor.",
            "Read the number outside the compiled function, for example only every n-th step.",
        ),
    ),
    "dynamic-output": BreakReason(
        "An operator's output size depends on its input's values",
        "The size of the result is known only after the operator has run.",
        ("Use an operation whose output size is static: torch.where, a mask, topk.",),
    ),
    "print": BreakReason(
        "Output is printed",
        "Python must print at each call, with real values.",
        ("Remove the call, or print outside the compiled function.",),
    ),
    "unknown-call": BreakReason(
        "A call that the tracer cannot inline",
        "The callable is written in C, or changes state that a graph cannot represent. Python runs it.",
        (
            "Replace it with a torch operation.",
            "If it is pure and works on tensors, mark it with engine.allow_in_graph.",
        ),
    ),
    "outside-iterator": BreakReason(
        "An iterator created outside the function is advanced",
        "Its next item is known only after the iterator returns it. Python reads the item. One graph is reused for all iterations of a loop.",
        ("Pass the list, tuple or range itself.",),
    ),
    "disabled": BreakReason(
        "A disabled function is called",
        "engine.disable makes a function run as plain Python.",
        ("Remove the decorator.",),
    ),
    "asked": BreakReason(
        "A graph break was requested", "The code calls engine.graph_break here.", ("Remove the call.",)
    ),
    "unsupported-operation": BreakReason(
        "An operation that the tracer does not support",
        "Its result for these values is not known while tracing. Python runs it.",
        ("Rewrite the line with plain Python values or torch operations.",),
    ),
    "unsupported-opcode": BreakReason(
        "A statement that the tracer does not support",
        "The tracer has no handler for this bytecode instruction. Python runs it.",
    ),
    "unsupported-argument": BreakReason(
        "A torch operation has an argument that a graph cannot hold",
        "Arguments of graph nodes are tensors, numbers, strings, dtypes, devices, and containers of these.",
        ("Pass a tensor or a plain number.",),
    ),
    "generator-frame": BreakReason(
        "The function is a generator",
        "The caller suspends and resumes a generator. A compiled frame cannot be suspended.",
        ("Return a list, or compile the function that is called for each item.",),
    ),
    "async-frame": BreakReason(
        "The function is asynchronous",
        "An event loop suspends and resumes it. A compiled frame cannot be suspended.",
        ("Compile the synchronous part.",),
    ),
    "depth": BreakReason("Calls are nested too deeply", "Inlining stops at the depth engine.config.inline_depth."),
    "budget": BreakReason(
        "The function runs too many instructions to trace",
        "The tracer unrolls loops. engine.config.instruction_budget limits the number of traced instructions.",
        ("Compile the body of the loop instead of the loop.",),
    ),
    "raises": BreakReason(
        "The function raises an exception here",
        "Python runs the frame, so that the exception is exactly the one that plain Python raises.",
    ),
    "side-effect": BreakReason(
        "A side effect that cannot be replayed",
        "The tracer cannot generate code that repeats this change after the graph.",
    ),
    "still-running": BreakReason(
        "A generator is suspended when the graph breaks",
        "The generator is handling an exception, or it runs the line that breaks. A resume function cannot continue it, so Python runs it from its start.",
        ("Move the line that breaks out of the block or loop.", "Write the context manager as a class."),
    ),
    "global-state": BreakReason(
        "A torch dispatch mode is active",
        "A dispatch mode changes what operators do. A graph would ignore it.",
    ),
    "fake-tensor": BreakReason(
        "An argument is a fake tensor",
        "A fake tensor has a shape and a dtype but no data. Python runs the function and returns fake results.",
        ("Call the function with real tensors to compile it.",),
    ),
    "internal": BreakReason(
        "The tracer failed",
        "This is a bug in the compiler, not in your code. The function runs as plain Python.",
        ("Please report the bug and attach this record.",),
    ),
}


def make_break_record(kind: str, what: str, stack: tuple[Span, ...], *, skipped: bool) -> BreakRecord:
    """Build the record of one break from its catalog entry and the innermost user line.

    ``stack`` is the user's call stack, outermost frame first.
    """
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
