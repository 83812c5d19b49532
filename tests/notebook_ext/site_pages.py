"""What a page of the static site holds, read from its HTML."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from html.parser import HTMLParser

REQUESTS = {"img": "src", "script": "src", "iframe": "src", "link": "href", "source": "srcset", "object": "data"}
"""Attributes that make a browser request something, by element."""
HEADING = re.compile(r"h[1-6]")


@dataclass
class PageFacts(HTMLParser):
    """Facts of one page; ``feed`` reads it."""

    language: str = ""
    title: str = ""
    policy: str = ""
    links: list[str] = field(default_factory=list)
    explorers: list[str] = field(default_factory=list)
    ids: list[str] = field(default_factory=list)
    headings: list[tuple[int, str]] = field(default_factory=list)
    requests: list[str] = field(default_factory=list)
    pictures_without_text: int = 0
    unnamed_fields: int = 0

    def __post_init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self._in: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Note what an element says."""
        given = {name: value or "" for name, value in attrs}
        self._in.append(tag)
        self.ids += [given["id"]] if "id" in given else []
        self.language = given.get("lang", "") if tag == "html" else self.language
        if given.get("http-equiv") == "Content-Security-Policy":
            self.policy = given["content"]
        self.links += [given["href"]] if tag == "a" and "href" in given else []
        self.explorers += [given["data-explorer"]] if "data-explorer" in given else []
        address = given.get(REQUESTS.get(tag, ""), "")
        self.requests += [address] if address and not address.startswith("data:") else []
        self.pictures_without_text += tag == "img" and not given.get("alt")
        self.unnamed_fields += tag == "input" and not given.get("aria-label")
        if HEADING.fullmatch(tag):
            self.headings.append((int(tag[1]), ""))

    def handle_endtag(self, tag: str) -> None:
        """Leave an element."""
        while self._in and self._in.pop() != tag:
            pass

    def handle_data(self, data: str) -> None:
        """Note text of the title and of headings."""
        if not self._in:
            return
        if self._in[-1] == "title":
            self.title += data
        elif any(HEADING.fullmatch(tag) for tag in self._in):
            level, text = self.headings[-1]
            self.headings[-1] = (level, text + data)


def page_facts(html: str) -> PageFacts:
    """Return the facts of a page."""
    facts = PageFacts()
    facts.feed(html)
    return facts


def contrast(first: str, second: str) -> float:
    """Return the contrast of two colors ``#rrggbb``, as WCAG defines it."""
    light, dark = sorted((_luminance(first), _luminance(second)), reverse=True)
    return (light + 0.05) / (dark + 0.05)


def _luminance(color: str) -> float:
    if len(color) == 4:
        color = "#" + "".join(2 * c for c in color[1:])
    parts: Iterable[float] = (int(color[i : i + 2], 16) / 255 for i in (1, 3, 5))
    red, green, blue = (p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4 for p in parts)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue
