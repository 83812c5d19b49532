"""A lesson with its saved outputs as HTML, and a fold for each explorer."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from html import escape
from typing import Any

from notebook_ext.notebook_html import ANSI, WIDGET_MIME
from notebook_ext.site.markdown_html import Links, Slugs, code_html, markdown_html

SUMMARY = re.compile(r"(?:^|· )((?:backward )?[\w.]+): \d+ graphs?, ")
"""The beginning of what a summary says about one function."""
EXPLORED = re.compile(r"^%explore (?:.*/)?(\w+)", re.MULTILINE)


def lesson_html(notebook: Any, links: Links, slugs: Slugs, explorers: Mapping[str, str]) -> str:
    """Return the HTML of a lesson. ``explorers`` are addresses of explorer pages by cell id."""
    return "\n".join(part for cell in notebook["cells"] for part in _cell_html(cell, links, slugs, explorers))


def _cell_html(cell: Any, links: Links, slugs: Slugs, explorers: Mapping[str, str]) -> Iterator[str]:
    source = "".join(cell["source"])
    if cell["cell_type"] == "markdown":
        yield markdown_html(source, links, slugs)
    elif cell["cell_type"] == "code":
        outputs = "".join(map(_output_html, cell["outputs"]))
        yield f'<div class="cell">{code_html(source, "python")}{outputs}'
        if cell["id"] in explorers:
            yield explorer_fold(explorers[cell["id"]], title_of_cell(cell))
        yield "</div>"


def title_of_cell(cell: Any) -> str:
    """Return the name of a cell's explorer.

    It has the functions of the cell's summary, else the name that the cell explores, else its first line.
    """
    source = "".join(cell["source"])
    for output in cell["outputs"]:
        if functions := SUMMARY.findall("".join(output.get("data", {}).get("text/plain", ""))):
            return ", ".join(functions)
    if explored := EXPLORED.search(source):
        return explored.group(1)
    lines = [line for line in source.splitlines() if line.strip() and not line.startswith("%%")]
    return lines[0].strip() if lines else "this cell"


def explorer_fold(address: str, title: str, *, is_open: bool = False) -> str:
    """Return a fold; the page's script shows the explorer in it while it is open."""
    return (
        f'<details class="explorer" data-explorer="{escape(address)}" data-title="Explorer of {escape(title)}"{" open" * is_open}>'
        f"<summary>Explorer of <code>{escape(title)}</code>: click a line and see what it became</summary>"
        f'<p class="print-out"><a href="{escape(address)}">Open it in a page of its own</a></p></details>'
    )


def _output_html(output: Any) -> str:
    if output["output_type"] == "stream":
        return _box_html(_text_html("".join(output["text"])))
    if output["output_type"] == "error":
        return f'<div class="output error">{_text_html(chr(10).join(output["traceback"]))}</div>'
    data = output.get("data", {})
    if WIDGET_MIME in data:
        return ""
    if "text/html" in data:
        return _box_html("".join(data["text/html"]))
    text = "".join(data.get("text/plain", ""))
    return _box_html(_text_html(text)) if text else ""


def _text_html(text: str) -> str:
    return f'<pre tabindex="0">{escape(ANSI.sub("", text))}</pre>'


def _box_html(inside: str) -> str:
    return f'<div class="output">{inside}</div>'
