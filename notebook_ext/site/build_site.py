"""Writes the whole site into a folder: pages, explorers, and the search index."""

from __future__ import annotations

import json
import pathlib
import shutil
from collections.abc import Callable, Mapping
from html import escape

from notebook_ext.notebook_report import REPO_ROOT
from notebook_ext.site.api_reference import api_html, command_line_html, magics_html
from notebook_ext.site.lesson_explorers import Explorers, committed_explorers, write_explorer
from notebook_ext.site.lesson_page import explorer_fold, lesson_html, title_of_cell
from notebook_ext.site.markdown_html import Slugs, markdown_html
from notebook_ext.site.package_map import package_map_html
from notebook_ext.site.page_frame import HOME, SEARCH, Entry, page_html
from notebook_ext.site.search_index import search_index
from notebook_ext.site.site_map import PARTS, FileLinks, Page, SiteMap, relative
from notebook_ext.widgets.page_template import script_safe_json

FRONT_EXPLORER = ("08_loops_to_triton", "recorded")
"""Lesson and cell of the explorer on the first page."""
SEARCH_BODY = (
    '<h1>Search</h1>\n<p id="said" role="status" aria-live="polite">Search needs JavaScript.</p>\n<ul id="hits"></ul>\n'
)
_CODE_PAGES: Mapping[str, Callable[[Slugs], str]] = {
    "magics": magics_html,
    "commands": command_line_html,
    "map": package_map_html,
}


def build_site(folder: pathlib.Path, explorers: Mapping[str, Explorers] | None = None) -> list[pathlib.Path]:
    """Write the site and return the paths of its pages, without those of explorers.

    ``explorers`` are recorded sessions by lesson; default: the committed ones. What was in ``folder`` is removed.

    Raises:
        LookupError: a text links to a file that does not exist.
    """
    shutil.rmtree(folder, ignore_errors=True)
    site = SiteMap()
    bodies = {HOME: ("", _home(site))}
    for page in site.pages:
        sessions = _sessions(page, explorers)
        addresses = _write_explorers(page, sessions, folder)
        bodies[page.address] = (page.title, page_body(page, site, addresses))
    entries = [Entry(page.address, page.title, page.part) for page in site.pages]
    parts = {page.address: page.part for page in site.pages}
    written = [
        _write(
            folder / address,
            page_html(address, title or "compile-explorer", body, entries, part=parts.get(address, "")),
        )
        for address, (title, body) in bodies.items()
    ]
    index = search_index({a: (title or "compile-explorer", body) for a, (title, body) in bodies.items()})
    search_page = page_html(SEARCH, "Search", SEARCH_BODY, entries, data=script_safe_json(index))
    return [*written, _write(folder / SEARCH, search_page)]


def page_body(page: Page, site: SiteMap, explorers: Mapping[str, str]) -> str:
    """Return the content of a page as HTML.

    ``explorers`` are addresses by cell id, as seen from the page.
    """
    slugs = Slugs()
    if page.module:
        return _CODE_PAGES[page.module](slugs) if page.module in _CODE_PAGES else api_html(page.module, slugs)
    if page.lesson:
        notebook = json.loads((REPO_ROOT / page.lesson).read_text(encoding="utf-8"))
        return lesson_html(notebook, FileLinks(site, page.address, page.lesson), slugs, explorers)
    parts = [
        markdown_html(text.read(), FileLinks(site, page.address, text.file), slugs, text.shift) for text in page.texts
    ]
    has_title = len(page.texts) == 1 and (not page.texts[0].only or page.texts[0].shift < 0)
    return "\n".join(parts if has_title else [f"<h1>{escape(page.title)}</h1>", *parts])


def _sessions(page: Page, explorers: Mapping[str, Explorers] | None) -> Explorers:
    if not page.lesson:
        return {}
    return committed_explorers(page.name) if explorers is None else explorers.get(page.name, {})


def _write_explorers(page: Page, sessions: Explorers, folder: pathlib.Path) -> dict[str, str]:
    """Write the explorers of a page and return their addresses by cell id.

    Addresses are relative to the page.
    """
    if not sessions:
        return {}
    cells = json.loads((REPO_ROOT / page.lesson).read_text(encoding="utf-8"))["cells"]
    titles = {cell["id"]: title_of_cell(cell) for cell in cells if cell["id"] in sessions}
    sessions = {cell: session for cell, session in sessions.items() if cell in titles}
    addresses: dict[pathlib.Path, str] = {}
    for cell, session in sessions.items():
        if session not in addresses:
            addresses[session] = _explorer_address(page.name, cell)
            (folder / addresses[session]).parent.mkdir(parents=True, exist_ok=True)
            write_explorer(session, folder / addresses[session], f"Explorer of {titles[cell]}")
    return {cell: relative(addresses[session], page.address) for cell, session in sessions.items()}


def _explorer_address(lesson: str, cell: str) -> str:
    return f"explorers/{lesson}-{cell}.html"


def _home(site: SiteMap) -> str:
    """Return the content of the first page: what it is, an explorer, and the four parts."""
    cards = []
    for name, (title, text) in PARTS.items():
        pages = [page for page in site.pages if page.part == name]
        rows = "".join(f'<li><a href="{page.address}">{escape(page.title)}</a></li>' for page in pages)
        cards.append(
            f'<section class="card"><h2 id="{name}">{title}</h2><p>{escape(text)}</p><ul>{rows}</ul></section>'
        )
    lesson, cell = FRONT_EXPLORER
    return (
        "<h1>Watch a compiler for PyTorch at work</h1>\n"
        '<p class="lead">Put <code>%%compile</code> above a notebook cell, click a line of your PyTorch code, and see the graph, '
        "the kernel and the GPU instructions that it became. No GPU is needed.</p>\n"
        f"{explorer_fold(_explorer_address(lesson, cell), 'gated_norm', is_open=True)}\n"
        f'<div class="cards">{"".join(cards)}</div>\n'
    )


def _write(path: pathlib.Path, text: str) -> pathlib.Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8", errors="replace")
    return path
