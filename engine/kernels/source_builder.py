"""Parts of a kernel's source: lines and expressions with their ops, and value names."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field


@dataclass
class SourceLine:
    """A source line and the numbers of the loop ops that it comes from."""

    text: str
    ops: list[int] = field(default_factory=list)


@dataclass(frozen=True)
class Expression:
    """Expression of an op; ``is_atomic``: it needs no parentheses inside a larger expression."""

    text: str
    is_atomic: bool
    ops: tuple[int, ...]

    @property
    def parenthesized(self) -> str:
        """The expression, in parentheses if it needs them."""
        return self.text if self.is_atomic else f"({self.text})"


def name_from_label(label: str) -> str:
    """Return a value name from a node or parameter name, without running and layer numbers."""
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
    """Replace the characters of a name that a Python identifier cannot contain."""
    cleaned = re.sub(r"\W", "_", name).strip("_") or "t"
    return f"t{cleaned}" if cleaned[0].isdigit() else cleaned


def match_lines(ours: Sequence[Sequence[str]], other_listings: Sequence[Sequence[str]]) -> tuple[int, ...]:
    """Match each line of one text to the line of another that shares the most ops.

    A line without common ops, such as a loop variable, gets the match of the next line; 0 if there is none.
    """
    matched: list[int] = []
    for ops in reversed(ours):
        shared = [len(set(ops) & set(theirs)) for theirs in other_listings]
        best = max(shared, default=0)
        matched.append(shared.index(best) + 1 if best else (matched[-1] if matched else 0))
    return tuple(reversed(matched))
