"""Pieces of a kernel's text: lines and expressions with the operations behind them, and what values are called."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field


@dataclass
class SourceLine:
    """A line of text and the numbers of the operations behind it."""

    text: str
    ops: list[int] = field(default_factory=list)


@dataclass(frozen=True)
class Expression:
    """An operation as an expression; ``is_atomic`` if it can stand inside a larger one without parentheses."""

    text: str
    is_atomic: bool
    ops: tuple[int, ...]

    @property
    def parenthesized(self) -> str:
        """The expression, in parentheses if it needs them."""
        return self.text if self.is_atomic else f"({self.text})"


def name_from_label(label: str) -> str:
    """What a value is for, from the name of the node or parameter that it comes from: without its running number or its layer's."""
    parts = [p for p in re.sub(r"\W", "_", label).split("_") if p]
    while len(parts) > 1 and parts[-1].isdigit():
        parts.pop()
    last = max((k for k, p in enumerate(parts) if p.isdigit()), default=-1)
    words = parts[last + 1 :] or parts or ["t"]
    words = words[1:] if words[0] == "self" and len(words) > 1 else words
    if words[-1:] in (["weight"], ["bias"]):
        words = [w.rstrip("0123456789") or w for w in words]
    return to_identifier("_".join(words))


def to_identifier(name: str) -> str:
    """The name with everything that Python would not have in one replaced."""
    cleaned = re.sub(r"\W", "_", name).strip("_") or "t"
    return f"t{cleaned}" if cleaned[0].isdigit() else cleaned


def match_lines(ours: Sequence[Sequence[str]], others: Sequence[Sequence[str]]) -> tuple[int, ...]:
    """For each line of one text the line of another that has most of the operations behind it.

    A line of loop variables stands with the next line that computes something, for which it is there; 0 where there is none.
    """
    found: list[int] = []
    for ops in reversed(ours):
        shared = [len(set(ops) & set(theirs)) for theirs in others]
        best = max(shared, default=0)
        found.append(shared.index(best) + 1 if best else (found[-1] if found else 0))
    return tuple(reversed(found))
