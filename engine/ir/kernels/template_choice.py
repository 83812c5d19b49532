"""Protocol by which lowering chooses between implementations, and its policies.

An autotuner measures the candidates; the policies here choose without measurement.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Protocol

from engine.ir.kernels.lowered_program import LoweredProgram

TEMPLATES_NEVER, TEMPLATES_ALWAYS, TEMPLATES_MEASURED = "never", "always", "measured"
"""Use of templates: never, wherever one matches, or where it measured faster."""


@dataclass(frozen=True)
class Candidate:
    """One implementation of a computation: its label and a function that builds its program."""

    label: str
    make: Callable[[], LoweredProgram]


@dataclass(frozen=True)
class ChoiceRequest:
    """Request to choose among ``candidates`` that compute equal results from equal inputs.

    The first candidate is the library call. ``default_text`` and ``template_text`` name it and the others in
    reasons.
    """

    node: str
    candidates: tuple[Candidate, ...]
    default_text: str = "the library call, with the kernels around it,"
    template_text: str = "the best template"
    size_hints: Mapping[str, int] = field(default_factory=dict)
    """Size hints of the symbols; a measurement uses them for all sizes."""
    unaligned_rows: int | None = None
    """Rows of a 16-bit matrix product whose other operand a library call would first pad.

    The library copies that operand with zeros around it. None for any other computation.
    """


@dataclass(frozen=True)
class ChoiceResult:
    """The choice: index of the candidate, measured seconds of each candidate, and the reason.

    Seconds are None for a candidate that was not measured or failed to run.
    """

    chosen: int
    seconds: tuple[float | None, ...] = ()
    reason: str = ""
    from_disk_cache: bool = False
    """True if the result was read from the disk cache."""
    device: str = ""


class TemplateChooser(Protocol):
    """Chooses among candidates; deterministic if nothing can be measured."""

    def choose(self, question: ChoiceRequest) -> ChoiceResult:
        """Choose one of the candidates."""
        ...


@dataclass(frozen=True)
class LibraryChooser:
    """Policy that always chooses the library call."""

    def choose(self, question: ChoiceRequest) -> ChoiceResult:
        """Return the first candidate."""
        return ChoiceResult(0)


LIBRARY_CHOOSER = LibraryChooser()


MAX_FEW_ROWS = 32
"""Maximum rows for which a template beats a library call that pads its operands.

Measured on an H200 with 16 rows and a vocabulary of 50,257: 30 us for the template, 57 us for the library.
"""


@dataclass(frozen=True)
class FewRowsChooser:
    """Policy that chooses a template for few rows and a matrix of odd size, as in logits.

    The template is known to be faster there without a measurement.
    """

    def choose(self, question: ChoiceRequest) -> ChoiceResult:
        """Return the first template for few rows, else the library call."""
        if question.unaligned_rows is None or question.unaligned_rows > MAX_FEW_ROWS or len(question.candidates) < 2:
            return ChoiceResult(0)
        return ChoiceResult(
            1, reason=f"For at most {MAX_FEW_ROWS} rows the template reads the other matrix only once, without padding."
        )


@dataclass(frozen=True)
class AlwaysTemplateChooser:
    """Policy that chooses a template wherever one matches, in its first configuration."""

    def choose(self, question: ChoiceRequest) -> ChoiceResult:
        """Return the second candidate, or the first if it is the only one."""
        return ChoiceResult(
            min(1, len(question.candidates) - 1),
            reason="The option templates requires a template; nothing was measured.",
        )
