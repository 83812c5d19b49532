"""Catalogs of reasons for graph breaks and fallbacks: a Markdown file per topic.

A file has one page per reason, separated by ``---``. A page has the reason's id and title, the cause in one paragraph,
a list of hints, and two programs ``f(x)``: one that has the reason, and one that avoids it. ``No fix:`` states why there
are no hints or no second program.
"""

from __future__ import annotations

import bz2
import functools
import json
import pathlib
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

PACKED_TOPICS = "topics.json.bz2"
"""File that replaces the files of a catalog in a wheel."""

_PAGE = re.compile(
    r"# (?P<id>[\w-]+): (?P<title>[^\n]+)\n\n(?P<cause>[^\n]+)\n"
    r"(?:\n(?P<hints>(?:- [^\n]+\n)+))?"
    r"(?:\nNo fix: (?P<no_fix>[^\n]+)\n)?"
    r"(?:\nBefore:\n\n```python\n(?P<before>.*?)\n```\n)?"
    r"(?:\nAfter:\n\n```python\n(?P<after>.*?)\n```\n)?",
    re.DOTALL,
)


@dataclass(frozen=True, slots=True)
class Reason:
    """One page of a catalog. ``topic`` is its file."""

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

    The files ``topic.md``, or the one that they are packed into, are read at the first look-up, and a page is parsed at its own first look-up.
    """

    def __init__(self, folder: pathlib.Path) -> None:
        self._folder = folder

    @functools.cached_property
    def _pages(self) -> dict[str, tuple[str, str]]:
        """Topic and text of each page by id."""
        pages = {}
        for topic, text in _read_topics(self._folder).items():
            for page in text.split("\n---\n\n"):
                pages[page.removeprefix("# ").partition(":")[0]] = (topic, page)
        return pages

    def __getitem__(self, id: str) -> Reason:
        return read_page(*self._pages[id])

    def __iter__(self) -> Iterator[str]:
        return iter(self._pages)

    def __len__(self) -> int:
        return len(self._pages)


def pack_topics(folder: pathlib.Path) -> None:
    """Replace the files of a catalog by one, a third smaller than they are in a wheel."""
    packed = bz2.compress(json.dumps(_read_topics(folder), ensure_ascii=False).encode())
    for path in folder.glob("*.md"):
        path.unlink()
    (folder / PACKED_TOPICS).write_bytes(packed)


def _read_topics(folder: pathlib.Path) -> dict[str, str]:
    packed = folder / PACKED_TOPICS
    if packed.exists():
        unpacked: dict[str, str] = json.loads(bz2.decompress(packed.read_bytes()))
        return unpacked
    return {path.stem: path.read_text(encoding="utf-8") for path in sorted(folder.glob("*.md"))}


@functools.cache
def read_page(topic: str, text: str) -> Reason:
    """Read a page as plain text; its prose may quote code in backticks.

    Raises:
        ValueError: the page does not have the form of a reason.
    """
    page = _PAGE.fullmatch(text)
    if page is None:
        raise ValueError(f"this page of {topic}.md does not have the form of a reason: {text[:80]!r}")
    part = {name: text or "" for name, text in page.groupdict().items()}
    prose = {name: part[name].replace("`", "") for name in ("title", "cause", "hints", "no_fix")}
    hints = tuple(line.removeprefix("- ") for line in prose["hints"].splitlines())
    return Reason(topic, prose["title"], prose["cause"], hints, prose["no_fix"], part["before"], part["after"])
