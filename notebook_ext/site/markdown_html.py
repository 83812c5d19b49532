"""Markdown to HTML: anchors, resolved links, highlighted code; tags in it are text."""

from __future__ import annotations

import re
from collections import Counter
from html import escape, unescape
from typing import Any, Protocol

import mistune
from pygments import highlight
from pygments.formatters import HtmlFormatter
from pygments.lexers import get_lexer_by_name
from pygments.util import ClassNotFound


class Links(Protocol):
    """Resolves links and pictures of one file that is shown on one page."""

    def address(self, url: str) -> str | None:
        """Return the address of a link's target as seen from the page.

        None where the target is not on the site.
        """

    def pictures(self, url: str) -> tuple[str, ...]:
        """Return a picture as data: URLs: one, or one for a light and one for a dark page."""


NOT_RUN = re.compile(r"^<!-- not run: (.+?) -->$")
"""Comment above a block of Python that no test runs, with the reason."""
LONG_NAME = 20
"""Length of names and paths from which a line may break within them."""
LANGUAGES = {"py": "python", "python": "python", "json": "json", "yaml": "yaml", "bash": "bash", "sh": "bash"}
_HEADING = re.compile(r"^(#{1,6})\s+(.+?)\s*#*$", re.MULTILINE)
_FENCE = re.compile(r"^```.*?^```", re.MULTILINE | re.DOTALL)
_FOLD = re.compile(r"&lt;(/?(?:details|summary))&gt;")
_BREAKABLE = re.compile(r"(?<=\w[/._])(?=\w)")
_PICTURE = re.compile(r'<picture>.*?<img src="([^"]+)" alt="([^"]+)"></picture>')


class _SiteRenderer(mistune.HTMLRenderer):
    """Renders tokens of mistune; the text of HTML tags is shown as text, but for folds."""

    def __init__(self, links: Links, slugs: Slugs, shift: int) -> None:
        super().__init__(escape=True)
        self._links = links
        self._slugs = slugs
        self._shift = shift

    def heading(self, text: str, level: int, **attrs: Any) -> str:
        return heading_html(min(level + self._shift, 6), text, self._slugs)

    def link(self, text: str, url: str, title: str | None = None) -> str:
        target = url if url.startswith("https://") else self._links.address(url)
        return text if target is None else f'<a href="{escape(target)}">{text}</a>'

    def codespan(self, text: str) -> str:
        shown = escape(text)
        return f"<code>{_BREAKABLE.sub('<wbr>', shown) if len(text) > LONG_NAME else shown}</code>"

    def image(self, text: str, url: str, title: str | None = None) -> str:
        alt = escape(plain_text(text))
        themes = ("on-light", "on-dark") if len(self._links.pictures(url)) > 1 else ("",)
        shown = zip(themes, self._links.pictures(url), strict=True)
        return "".join(f'<img class="{theme}" alt="{alt}" src="{data}">' for theme, data in shown)

    def block_code(self, code: str, info: str | None = None) -> str:
        return code_html(code, (info or "").split(" ")[0])

    def block_html(self, html: str) -> str:
        if found := NOT_RUN.match(html.strip()):
            return f'<p class="note">No test runs this block: {escape(found.group(1))}</p>\n'
        return _FOLD.sub(r"<\1>", escape(html))

    def inline_html(self, html: str) -> str:
        return _FOLD.sub(r"<\1>", escape(html))

    def table(self, text: str) -> str:
        return f'<div class="wide" tabindex="0" role="group" aria-label="Table"><table>{text}</table></div>\n'

    def block_quote(self, text: str) -> str:
        return f"<blockquote>{text}</blockquote>\n"


class Slugs:
    """Anchors of one page, as GitHub names them."""

    def __init__(self) -> None:
        self._seen: Counter[str] = Counter()

    def next_slug(self, title: str) -> str:
        """Return the anchor of the next heading; a title that occurs twice gets a number."""
        slug = re.sub(r"[^\w\- ]", "", title.strip().lower()).replace(" ", "-") or "section"
        self._seen[slug] += 1
        repeated = self._seen[slug] - 1
        return f"{slug}-{repeated}" if repeated else slug


def markdown_html(text: str, links: Links, slugs: Slugs, shift: int = 0) -> str:
    """Return the HTML of Markdown. ``shift`` makes headings smaller by that many levels."""
    renderer = _SiteRenderer(links, slugs, shift)
    rendered = mistune.create_markdown(renderer=renderer, plugins=["table", "strikethrough"])(
        _PICTURE.sub(r"![\2](\1)", text)
    )
    return str(rendered)


def code_html(code: str, language: str) -> str:
    """Return highlighted code; an unknown language is plain text."""
    try:
        lexer = get_lexer_by_name(LANGUAGES.get(language, language or "text"))
    except ClassNotFound:
        lexer = get_lexer_by_name("text")
    inside = highlight(code, lexer, HtmlFormatter(nowrap=True))
    return f'<div class="code"><pre tabindex="0">{inside}</pre></div>\n'


def heading_html(level: int, inside: str, slugs: Slugs) -> str:
    """Return a heading with the next anchor; ``inside`` is HTML.

    Headings below the first level link to themselves.
    """
    slug = slugs.next_slug(plain_text(inside))
    link = f'<a class="anchor" href="#{slug}" aria-label="Link to this section">#</a>' if level > 1 else ""
    return f'<h{level} id="{slug}">{inside}{link}</h{level}>\n'


def headings(text: str) -> list[tuple[int, str]]:
    """Return level and title of each heading of a Markdown text."""
    return [(len(marks), title) for marks, title in _HEADING.findall(_FENCE.sub("", text))]


def sections(text: str, titles: tuple[str, ...]) -> str:
    """Return the sections with these level-2 headings, in the order of ``titles``.

    Raises:
        KeyError: the text has no such section.
    """
    parts: dict[str, list[str]] = {}
    current: list[str] = []
    in_fence = False
    for line in text.splitlines(keepends=True):
        in_fence ^= line.startswith("```")
        if line.startswith("## ") and not in_fence:
            current = parts.setdefault(line[3:].strip(), [])
        current.append(line)
    return "".join("".join(parts[title]) for title in titles)


def plain_text(html: str) -> str:
    """Return the text of HTML that ``markdown_html`` made."""
    return unescape(re.sub(r"<[^>]+>", "", html))
