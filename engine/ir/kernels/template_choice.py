"""What lowering asks of whoever can measure: of several ways to compute the same, which is taken, and why."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Protocol

from engine.ir.kernels.lowered_program import LoweredProgram

TEMPLATES_NEVER, TEMPLATES_ALWAYS, TEMPLATES_MEASURED = "never", "always", "measured"
"""When templates are used: never, wherever one fits, or where one was measured to win."""


@dataclass(frozen=True)
class Candidate:
    """One way to compute what a question is about: its name, and a program that does it alone."""

    label: str
    make: Callable[[], LoweredProgram]


@dataclass(frozen=True)
class ChoiceRequest:
    """``ways`` compute the same from the same inputs; the first is the usual one, which with the ``others`` goes by these words."""

    node: str
    candidates: tuple[Candidate, ...]
    library_text: str = "the library's call, with the kernels around it,"
    template_text: str = "the best template"
    size_hints: Mapping[str, int] = field(default_factory=dict)
    """Where sizes are symbols: those at hand, which stand for all in a measurement."""
    unaligned_rows: int | None = None
    """Rows of a product of 16-bit numbers for which a library would need one side copied, with zeros around it; None for anything else."""


@dataclass(frozen=True)
class ChoiceResult:
    """The position of the way taken, what each took in seconds (None: not measured, or it could not be run), and a sentence."""

    chosen: int
    seconds: tuple[float | None, ...] = ()
    reason: str = ""
    from_disk_cache: bool = False
    """It was found in the cache on disk."""
    device: str = ""


class TemplateChooser(Protocol):
    """Answers questions. Where nothing can be measured the answer is always the same."""

    def choose(self, question: ChoiceRequest) -> ChoiceResult:
        """Which way to take."""
        ...


@dataclass(frozen=True)
class LibraryChooser:
    """Takes the library's call everywhere, and asks nothing."""

    def choose(self, question: ChoiceRequest) -> ChoiceResult:
        """The first way."""
        return ChoiceResult(0)


LIBRARY_CHOOSER = LibraryChooser()


MAX_FEW_ROWS = 32
"""Rows up to which a template is faster than a library that wants its operands padded, measured on an H200: 30 us against 57 for 16 rows and a
vocabulary of 50,257."""


@dataclass(frozen=True)
class FewRowsChooser:
    """Takes a template where it is known to win without a measurement: for a few rows and a matrix of odd size, as logits have."""

    def choose(self, question: ChoiceRequest) -> ChoiceResult:
        """The first template for few rows, else the usual way."""
        if question.unaligned_rows is None or question.unaligned_rows > MAX_FEW_ROWS or len(question.candidates) < 2:
            return ChoiceResult(0)
        return ChoiceResult(
            1,
            reason=f"With at most {MAX_FEW_ROWS} rows the other matrix is read once, and nothing is put together afterwards.",
        )


@dataclass(frozen=True)
class AlwaysTemplateChooser:
    """Takes a template wherever one fits: its first configuration."""

    def choose(self, question: ChoiceRequest) -> ChoiceResult:
        """The second way, if there is one."""
        return ChoiceResult(
            min(1, len(question.candidates) - 1), reason="A template was asked for; nothing was measured."
        )
