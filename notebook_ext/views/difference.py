"""Two recordings side by side, as a table that stays readable without a kernel, and as text."""

from __future__ import annotations

import html
from collections.abc import Iterator

from engine.records.difference import Change, FrameDifference, SessionDifference
from notebook_ext.views.text import one_line, plural

CELL = "padding:2px 10px 2px 0;text-align:left;vertical-align:top"
STYLE = "font-family:var(--jp-ui-font-family,system-ui,sans-serif);font-size:13px;line-height:19px;margin:4px 0"
CODE = "font:12px/17px var(--jp-code-font-family,Menlo,Consolas,monospace);margin:0 0 4px 18px;white-space:pre-wrap;overflow-wrap:anywhere"
QUIET = "color:var(--jp-ui-font-color2,#5a5a5a)"
SHOWN = 40
"""Lines of one change that are shown."""


def difference_text(found: SessionDifference, first: str, second: str) -> str:
    """The comparison as lines: what changed, marked with - and + as in a patch; what is equal in a word."""
    lines = [headline(found, first, second)]
    for frame in found.frames:
        lines += _frame_lines(frame, first, second)
    return "\n".join(lines)


def headline(found: SessionDifference, first: str, second: str) -> str:
    """One sentence."""
    a, b = one_line(first, 40), one_line(second, 40)
    changed = [f for f in found.frames if _changed(f)]
    if not changed:
        return f"{a} and {b}: no difference in {plural(len(found.frames), 'function')}, times apart."
    totals = ", ".join(
        f"{c.what} {c.first} → {c.second}" for c in found.whole if c.first != c.second and c.what != "graphs"
    )
    return (
        f"{a} → {b}: {len(changed)} of {plural(len(found.frames), 'function')} differ"
        + (f"; {totals}" if totals else "")
        + "."
    )


def _changed(frame: FrameDifference) -> bool:
    return not frame.first or not frame.second or any(not c.is_same for c in frame.changes if c.what != "time")


def _frame_lines(frame: FrameDifference, first: str, second: str) -> Iterator[str]:
    name = f"{one_line(frame.name, 60)}  {one_line(frame.place, 60)}".rstrip()
    if not frame.first or not frame.second:
        yield f"{name}: only in {one_line(first if frame.first else second, 40)}"
        return
    yield f"{name}: {'equal' if not _changed(frame) else 'differs'}"
    for change in frame.changes:
        if not change.is_same:
            yield f"  {change.what}: {_counts(change)}"
            yield from (f"    {mark} {text}" for mark, text in _marked(change))


def _counts(change: Change) -> str:
    return change.first if change.first == change.second else f"{change.first} → {change.second}"


def _marked(change: Change) -> Iterator[tuple[str, str]]:
    both = [("-", t) for t in change.only_first] + [("+", t) for t in change.only_second]
    yield from ((mark, one_line(text, 200)) for mark, text in both[:SHOWN])
    if len(both) > SHOWN:
        yield " ", f"… and {len(both) - SHOWN} more lines"


def difference_html(found: SessionDifference, first: str, second: str) -> str:
    """The comparison as HTML without script; all text in it is escaped."""
    rows = "".join(_frame_html(f, first, second) for f in found.frames)
    head = html.escape(headline(found, first, second))
    totals = "".join(
        f'<tr><td style="{CELL}">{html.escape(c.what)}</td><td style="{CELL}">{html.escape(c.first)}</td><td style="{CELL}">{html.escape(c.second)}</td></tr>'
        for c in found.whole
    )
    names = "".join(f'<th style="{CELL}">{html.escape(one_line(n, 40))}</th>' for n in ("", first, second))
    return f'<div style="{STYLE}"><b>{head}</b><table style="border-collapse:collapse;margin:6px 0"><tr>{names}</tr>{totals}</table>{rows}</div>'


def _frame_html(frame: FrameDifference, first: str, second: str) -> str:
    title, *lines = _frame_lines(frame, first, second)
    if not lines:
        return f'<div style="{QUIET}">{html.escape(title)}</div>'
    body = "".join(f"<div>{html.escape(line[2:])}</div>" for line in lines)
    return f'<details open><summary>{html.escape(title)}</summary><div style="{CODE}">{body}</div></details>'
