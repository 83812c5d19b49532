"""Catalogs of reasons for graph breaks and fallbacks: one Markdown page per reason.

A page has a title, the cause in one paragraph, a list of hints, and two programs ``f(x)``: with and
without the reason. ``No fix:`` states why there are no hints or no second program.
"""

from __future__ import annotations

import functools
import pathlib
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

_PAGE = re.compile(
    r"# (?P<title>[^\n]+)\n\n(?P<cause>[^\n]+)\n"
    r"(?:\n(?P<hints>(?:- [^\n]+\n)+))?"
    r"(?:\nNo fix: (?P<no_fix>[^\n]+)\n)?"
    r"(?:\nBefore:\n\n```python\n(?P<before>.*?)\n```\n)?"
    r"(?:\nAfter:\n\n```python\n(?P<after>.*?)\n```\n)?",
    re.DOTALL,
)


@dataclass(frozen=True, slots=True)
class Reason:
    """One page of a catalog. ``topic`` is its folder."""

    topic: str
    title: str
    cause: str
    hints: tuple[str, ...]
    no_fix: str
    example_before: str
    """A program that has this reason; empty only for internal errors."""
    example_after: str
    """A repaired program; empty if there is no fix."""

    @property
    def advice(self) -> tuple[str, ...]:
        """All sentences on what to do."""
        return (*self.hints, *((f"No fix: {self.no_fix}",) if self.no_fix else ()))


class ReasonCatalog(Mapping[str, Reason]):
    """Maps ids to reasons.

    Pages are the files ``topic/id.md``, each read when it is first needed.
    """

    def __init__(self, folder: pathlib.Path) -> None:
        self._folder = folder

    @functools.cached_property
    def _paths(self) -> dict[str, pathlib.Path]:
        return {path.stem: path for path in sorted(self._folder.glob("*/*.md"))}

    def __getitem__(self, id: str) -> Reason:
        return read_page(self._paths[id])

    def __iter__(self) -> Iterator[str]:
        return iter(self._paths)

    def __len__(self) -> int:
        return len(self._paths)


@functools.cache
def read_page(path: pathlib.Path) -> Reason:
    """Read a page as plain text; its prose may quote code in backticks.

    Raises:
        ValueError: the page does not have the form of a reason.
    """
    found = _PAGE.fullmatch(path.read_text(encoding="utf-8"))
    if found is None:
        raise ValueError(f"{path} is not the page of a reason")
    part = {name: text or "" for name, text in found.groupdict().items()}
    prose = {name: part[name].replace("`", "") for name in ("title", "cause", "hints", "no_fix")}
    hints = tuple(line.removeprefix("- ") for line in prose["hints"].splitlines())
    return Reason(
        path.parent.name, prose["title"], prose["cause"], hints, prose["no_fix"], part["before"], part["after"]
    )
