"""What lowering asks of whoever can measure: of several ways to compute the same, which is taken, and why."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Protocol

from engine.ir.kernel import Program

NEVER, ASKED, MEASURED = "never", "always", "measured"
"""When templates are used: never, wherever one fits, or where one was measured to win."""


@dataclass(frozen=True)
class Way:
    """One way to compute what a question is about: its name, and a program that does it alone."""

    label: str
    make: Callable[[], Program]


@dataclass(frozen=True)
class Question:
    """``ways`` compute the same from the same inputs; the first is the usual one, which with the ``others`` goes by these words."""

    node: str
    ways: tuple[Way, ...]
    usual: str = "the library's call, with the kernels around it,"
    others: str = "the best template"
    sizes: Mapping[str, int] = field(default_factory=dict)
    """Where sizes are symbols: those at hand, which stand for all in a measurement."""
    rows: int | None = None
    """Rows of a product of 16-bit numbers for which a library would need one side copied, with zeros around it; None for anything else."""


@dataclass(frozen=True)
class Answer:
    """The position of the way taken, what each took in seconds (None: not measured, or it could not be run), and a sentence."""

    taken: int
    seconds: tuple[float | None, ...] = ()
    reason: str = ""
    is_known: bool = False
    """It was found in the cache on disk."""
    device: str = ""


class Chooser(Protocol):
    """Answers questions. Where nothing can be measured the answer is always the same."""

    def choose(self, question: Question) -> Answer:
        """Which way to take."""
        ...


@dataclass(frozen=True)
class Usual:
    """Takes the library's call everywhere, and asks nothing."""

    def choose(self, question: Question) -> Answer:
        """The first way."""
        return Answer(0)


USUAL = Usual()


FEW = 32
"""Rows up to which a template is faster than a library that wants its operands padded, measured on an H200: 30 us against 57 for 16 rows and a
vocabulary of 50,257."""


@dataclass(frozen=True)
class FewRows:
    """Takes a template where it is known to win without a measurement: for a few rows and a matrix of odd size, as logits have."""

    def choose(self, question: Question) -> Answer:
        """The first template for few rows, else the usual way."""
        if question.rows is None or question.rows > FEW or len(question.ways) < 2:
            return Answer(0)
        return Answer(
            1, reason=f"With at most {FEW} rows the other matrix is read once, and nothing is put together afterwards."
        )


@dataclass(frozen=True)
class Templates:
    """Takes a template wherever one fits: its first configuration."""

    def choose(self, question: Question) -> Answer:
        """The second way, if there is one."""
        return Answer(min(1, len(question.ways) - 1), reason="A template was asked for; nothing was measured.")
