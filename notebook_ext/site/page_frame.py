"""Frame of every page of the site: header, navigation, style and script.

A page requests nothing but explorers. The content security policy allows one script, by its hash, and frames from the site itself.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

from pygments.formatters import HtmlFormatter

from notebook_ext.site.search_index import page_sections
from notebook_ext.site.site_map import PARTS, relative
from notebook_ext.widgets.bundle_assets import STATIC, joined_modules
from notebook_ext.widgets.page_template import policy_source

NAME = "compile-explorer"
HOME, SEARCH = "index.html", "search.html"
POLICY = "default-src 'none'; img-src data:; style-src 'unsafe-inline'; script-src {script}; frame-src 'self' file:; base-uri 'none'"
LIGHT_CODE, DARK_CODE = "xcode", "github-dark"
FAINT, LEGIBLE = "#6E7681", "#8B949E"
"""A color of the dark code style that has too little contrast, and what replaces it."""
DARK = ':root[data-theme="dark"]'


@dataclass(frozen=True)
class Entry:
    """A page in the navigation."""

    address: str
    title: str
    part: str


def page_html(address: str, title: str, body: str, entries: Sequence[Entry], *, data: str = "", part: str = "") -> str:
    """Return a whole page.

    ``body`` is its content; ``data`` is JSON for the script, already safe in HTML.
    """
    shown = title if address == HOME else f"{title} · {NAME}"
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{POLICY.format(script=policy_source(_script()))}">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{escape(shown)}</title><style>{_style()}</style><script>{_script()}</script></head>\n"
        f'<body><a class="skip" href="#main">Skip to the text</a>\n{_header_html(address, part, entries)}\n<div class="columns">'
        f'{_side_html(address, part, body, entries)}<main id="main" tabindex="-1">\n{body}\n{_neighbor_links(address, entries)}</main></div>\n'
        f"{_data(data)}</body></html>\n"
    )


def _header_html(address: str, part: str, entries: Sequence[Entry]) -> str:
    home, search = relative(HOME, address), relative(SEARCH, address)
    links = "".join(
        f'<a href="{relative(_first_address(name, entries), address)}"{_current(is_current=name == part)}>{title}</a>'
        for name, (title, _) in PARTS.items()
    )
    return (
        f'<header class="top"><a class="brand" href="{home}">{NAME}</a><nav class="parts" aria-label="Parts">{links}</nav>'
        f'<form role="search" action="{search}" method="get"><input type="search" name="q" aria-label="Search" placeholder="Search ( / )" autocomplete="off"></form>'
        '<button type="button" id="theme" hidden>Dark theme</button></header>'
    )


def _first_address(part: str, entries: Sequence[Entry]) -> str:
    return next(entry.address for entry in entries if entry.part == part)


def _side_html(address: str, part: str, body: str, entries: Sequence[Entry]) -> str:
    if not part:
        return ""
    rows = "".join(
        f'<li><a href="{relative(entry.address, address)}"{_current(is_current=entry.address == address)}>{escape(entry.title)}</a>'
        f"{_contents_html(body) if entry.address == address else ''}</li>"
        for entry in entries
        if entry.part == part
    )
    title = PARTS[part][0]
    return f'<nav class="side" aria-label="{title}"><details class="menu" open><summary>{title}</summary><ul>{rows}</ul></details></nav>'


def _contents_html(body: str) -> str:
    """Return the list of a page's sections; pages with many have their topics only."""
    sections = [s for s in page_sections(body)[1:] if s.anchor and f'<h2 id="{s.anchor}"' in body]
    rows = "".join(f'<li><a href="#{escape(s.anchor)}">{escape(s.title.strip())}</a></li>' for s in sections)
    return f"<ul>{rows}</ul>" if rows else ""


def _neighbor_links(address: str, entries: Sequence[Entry]) -> str:
    """Return links to the pages before and after."""
    addresses = [entry.address for entry in entries]
    if address not in addresses:
        return ""
    at = addresses.index(address)
    before = entries[at - 1] if at else None
    after = entries[at + 1] if at + 1 < len(entries) else None
    links = [
        f'<a rel="{rel}" href="{relative(entry.address, address)}">{mark}{escape(entry.title)}</a>'
        if entry
        else "<span></span>"
        for rel, mark, entry in (("prev", "← ", before), ("next", "Next: ", after))
    ]
    return f'<nav class="turn" aria-label="Previous and next page">{"".join(links)}</nav>\n'


def _current(*, is_current: bool) -> str:
    return ' aria-current="page"' if is_current else ""


def _data(data: str) -> str:
    return f'<script type="application/json" id="index">{data}</script>' if data else ""


@functools.cache
def _script() -> str:
    return joined_modules(("site/search.js", "site/site.js"))


@functools.cache
def _style() -> str:
    light = HtmlFormatter(style=LIGHT_CODE).get_style_defs(".code")
    dark = HtmlFormatter(style=DARK_CODE).get_style_defs(f"{DARK} .code").replace(FAINT, LEGIBLE)
    plain = f".code, {DARK} .code {{ background: var(--code); }}"
    return f"{light}\n{dark}\n{plain}\n{(STATIC / 'site' / 'site.css').read_text(encoding='utf-8')}"
