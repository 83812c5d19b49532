"""Renders an executed notebook as one self-contained HTML page.

The page makes no requests and has a light and a dark theme.
"""

from __future__ import annotations

import base64
import html
import re
from collections.abc import Iterator, Mapping
from typing import Any

from pygments import highlight
from pygments.formatters import HtmlFormatter
from pygments.lexers import PythonLexer

from notebook_ext.widgets.page_template import script_policy

OUTPUT_METADATA_KEY = "compile-explorer"
"""Key in an output's metadata that says which session the output shows."""
EXPLORER_ANCHOR = "explorer"
"""Fragment of the address of the explorer that is unfolded."""
WIDGET_MIME = "application/vnd.jupyter.widget-view+json"
ANSI = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")
CONTENT_SECURITY_POLICY = "default-src 'none'; img-src data:; style-src 'unsafe-inline'; script-src {scripts}"
"""Content security policy of the page: it loads nothing, and runs only explorers in it."""

PAGE_CSS = """
:root { color-scheme: light dark; --ground: #ffffff; --ink: #1f1f1f; --quiet: #5a5a5a; --line: #d4d4d4; --code: #f6f6f6; --error: #fdecea;
  --jp-ui-font-family: system-ui, -apple-system, "Segoe UI", sans-serif; --jp-ui-font-color2: var(--quiet); }
@media (prefers-color-scheme: dark) { :root { --ground: #161616; --ink: #e6e6e6; --quiet: #b0b0b0; --line: #444444; --code: #222222; --error: #3b1f1c; } }
body { margin: 0 auto; max-width: 62rem; padding: 1.5rem 1rem 4rem; background: var(--ground); color: var(--ink);
  font: 15px/1.55 var(--jp-ui-font-family); }
h1, h2, h3 { line-height: 1.25; margin: 1.8em 0 0.5em; }
a { color: inherit; }
a.anchor-link { display: none; }
code, pre { font-family: ui-monospace, "SF Mono", Menlo, Consolas, "DejaVu Sans Mono", monospace; font-size: 12.5px; line-height: 1.45; }
p code, li code, td code { background: var(--code); padding: 0 3px; border-radius: 2px; }
pre { margin: 0; overflow-x: auto; }
table { border-collapse: collapse; }
.cell { margin: 0.9em 0; }
.input { background: var(--code); border: 1px solid var(--line); border-radius: 2px; padding: 8px 10px; }
.output { padding: 4px 10px; }
.output > pre { white-space: pre-wrap; overflow-wrap: anywhere; }
.error { background: var(--error); border-left: 3px solid #c0392b; padding: 6px 10px; }
iframe { width: 100%; height: 56rem; border: 1px solid var(--line); border-radius: 2px; }
.explorer[open] { width: min(96vw, 84rem); position: relative; left: 50%; transform: translateX(-50%); }
summary { cursor: pointer; }
img { max-width: 100%; }
"""


def notebook_page(
    notebook: Any,
    title: str,
    explorers: Mapping[int, str] | None = None,
    *,
    unfolded: int | None = None,
    folder: str = "",
) -> str:
    """Return the whole page of an executed notebook; its pictures are read from ``folder``.

    ``explorers`` are pages by session number; outputs have these numbers in their metadata. That of ``unfolded`` is
    open, and has ``EXPLORER_ANCHOR`` as id.
    """
    shown = explorers or {}
    policy = CONTENT_SECURITY_POLICY.format(scripts=script_policy() if shown else "'none'")
    body = "\n".join(part for cell in notebook.cells for part in _cell_html(cell, shown, folder))
    if unfolded is not None:
        body = body.replace(_details_tag(unfolded), _details_tag(unfolded, is_open=True), 1)
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{html.escape(title)}</title><style>{PAGE_CSS}{_highlight_css()}</style></head>\n<body>\n<main>\n{body}\n</main>\n</body></html>\n"
    )


def title_of(notebook: Any, default: str) -> str:
    """Return the first heading of the notebook, else ``default``."""
    for cell in notebook.cells:
        if cell.cell_type == "markdown" and (match := re.search(r"^#\s+(.+)$", cell.source, re.MULTILINE)):
            return match.group(1).strip()
    return default


def _cell_html(cell: Any, explorers: Mapping[int, str], folder: str) -> Iterator[str]:
    if cell.cell_type == "markdown":
        from nbconvert.filters.markdown_mistune import IPythonRenderer, MarkdownWithMath

        renderer = IPythonRenderer(
            escape=False, embed_images=True, path=folder, attachments=cell.get("attachments", {})
        )
        yield f'<div class="cell">{MarkdownWithMath(renderer=renderer).render(cell.source)}</div>'
    elif cell.cell_type == "code":
        outputs = "".join(_output_html(o) + _explorer_html(o, explorers) for o in cell.outputs)
        yield f'<div class="cell"><div class="input code">{_highlight_python(cell.source)}</div>{outputs}</div>'


def _highlight_python(source: str) -> str:
    return str(highlight(source, PythonLexer(), HtmlFormatter(nowrap=True)).join(("<pre>", "</pre>")))


def _highlight_css() -> str:
    light = HtmlFormatter(style="xcode").get_style_defs(".code")
    dark = HtmlFormatter(style="github-dark").get_style_defs(".code")
    plain = ".code { background: var(--code); }"
    return f"{light}\n@media (prefers-color-scheme: dark) {{ {dark} }}\n{plain}"


def _output_html(output: Any) -> str:
    if output.output_type == "stream":
        return _box_html(_text_html(output.text))
    if output.output_type == "error":
        return f'<div class="output error">{_text_html(chr(10).join(output.traceback))}</div>'
    data = output.get("data", {})
    if WIDGET_MIME in data:
        return ""
    if "text/html" in data:
        return _box_html(_join_lines(data["text/html"]))
    for kind in ("image/png", "image/jpeg"):
        if kind in data:
            return _box_html(f'<img alt="" src="data:{kind};base64,{_join_lines(data[kind]).strip()}">')
    if "image/svg+xml" in data:
        encoded = base64.b64encode(_join_lines(data["image/svg+xml"]).encode()).decode()
        return _box_html(f'<img alt="" src="data:image/svg+xml;base64,{encoded}">')
    text = _join_lines(data.get("text/plain", ""))
    return _box_html(_text_html(text)) if text else ""


def _explorer_html(output: Any, explorers: Mapping[int, str]) -> str:
    number = output.get("metadata", {}).get(OUTPUT_METADATA_KEY, {}).get("session")
    if number not in explorers:
        return ""
    inside = html.escape(explorers[number], quote=True)
    frame = f'<iframe title="Explorer" loading="lazy" srcdoc="{inside}"></iframe>'
    return f"{_details_tag(number)}<summary>Explorer</summary>{frame}</details>"


def _details_tag(number: int, *, is_open: bool = False) -> str:
    opened = f' id="{EXPLORER_ANCHOR}" open' if is_open else ""
    return f'<details class="output explorer" data-session="{number}"{opened}>'


def _join_lines(value: Any) -> str:
    return value if isinstance(value, str) else "".join(value)


def _text_html(text: str) -> str:
    return f"<pre>{html.escape(ANSI.sub('', text))}</pre>"


def _box_html(inside: str) -> str:
    return f'<div class="output">{inside}</div>'
