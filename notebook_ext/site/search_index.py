"""The index of the offline search: the text of each section of each page."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from html.parser import HTMLParser

SKIPPED_CLASSES = frozenset({"output", "anchor", "explorer", "wide-nav"})
"""Elements whose text is not indexed: outputs of cells, links of headings, explorers."""
VOID = frozenset({"br", "img", "hr", "input", "meta", "link", "source", "wbr", "col", "area"})
HEADINGS = ("h1", "h2", "h3", "h4")
BLOCKS = frozenset({"p", "li", "td", "th", "dt", "dd", "pre", "div", "tr", "summary", "blockquote"})


@dataclass
class Section:
    """A heading with the text up to the next heading."""

    anchor: str
    title: str = ""
    texts: list[str] = field(default_factory=list)


class _Sections(HTMLParser):
    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.sections = [Section("")]
        self._in_heading = False
        self._skipped = 0

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag in VOID:
            return
        attributes = dict(attrs)
        if self._skipped or SKIPPED_CLASSES & set((attributes.get("class") or "").split()):
            self._skipped += 1
        elif tag in HEADINGS:
            self.sections.append(Section(attributes.get("id") or ""))
            self._in_heading = True
        elif tag in BLOCKS:
            self.sections[-1].texts.append(" ")

    def handle_endtag(self, tag: str) -> None:
        if self._skipped:
            self._skipped -= tag not in VOID
        elif tag in HEADINGS:
            self._in_heading = False

    def handle_data(self, data: str) -> None:
        if self._skipped:
            return
        if self._in_heading:
            self.sections[-1].title += data
        else:
            self.sections[-1].texts.append(data)


def page_sections(html: str) -> list[Section]:
    """Return the sections of a page's content, without outputs of cells."""
    parser = _Sections()
    parser.feed(html)
    parser.close()
    return [section for section in parser.sections if section.title or any(text.strip() for text in section.texts)]


def search_index(pages: Mapping[str, tuple[str, str]]) -> dict[str, object]:
    """Return the index as plain values, from title and content of each page by address.

    ``pages`` has address and title, ``sections`` has number of the page, anchor, title and text.
    """
    sections = [
        (number, section.anchor, section.title.strip(), " ".join("".join(section.texts).split()))
        for number, (_, html) in enumerate(pages.values())
        for section in page_sections(html)
    ]
    return {"pages": [(address, title) for address, (title, _) in pages.items()], "sections": sections}
