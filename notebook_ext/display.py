"""The two outputs of a cell: a summary that stays readable without a kernel, then the widget where there is one."""

from __future__ import annotations

import html
import importlib.util
from typing import Any

from IPython.core.interactiveshell import InteractiveShell
from IPython.display import display

from engine.records.runtime import Skipped
from engine.records.session import Session
from notebook_ext.views.summary import summary
from notebook_ext.views.text import one_line
from notebook_ext.views.twin import static_html, static_text, summary_html

STYLE = "font-family:var(--jp-ui-font-family,system-ui,sans-serif);font-size:13px;line-height:18px;margin:4px 0"
QUIET = "color:var(--jp-ui-font-color2,#5a5a5a)"


def show(shell: InteractiveShell, session: Session, *, static: bool = True) -> None:
    """Display a session below a cell. With ``static`` off, only the summary line is kept in the notebook, not the tables and pictures."""
    display(bundle(session, static=static), raw=True)
    if has_widgets(shell):
        from notebook_ext.widgets.explorer import Explorer

        display(Explorer(session))


def explore(shell: InteractiveShell, session: Session) -> None:
    """Display a session on request: in a terminal, all of it as text."""
    if has_widgets(shell):
        show(shell, session)
    else:
        print(static_text(session))


def bundle(session: Session, *, static: bool) -> dict[str, str]:
    """The summary as a MIME bundle; all text in it that came from the user is escaped."""
    line = summary(session)
    left = () if line.remedies else session.skipped
    head = f'<div style="{STYLE}">{summary_html(session)}{"".join(map(skipped_html, left))}</div>'
    twin = static_html(session) if static else ""
    return {
        "text/html": f"{head}{twin}",
        "text/plain": "\n".join([line.text, *(f"  {skipped_text(s)}" for s in left)]),
    }


def skipped_text(skipped: Skipped) -> str:
    """What was not compiled, why, and what to do."""
    return one_line(f"Not compiled: {skipped.name}: {skipped.reason}. {skipped.remedy}".rstrip(), 400)


def skipped_html(skipped: Skipped) -> str:
    """The same as one escaped line."""
    return f'<div style="{QUIET}">{html.escape(skipped_text(skipped))}</div>'


def has_widgets(shell: InteractiveShell) -> bool:
    """Whether a widget can be shown: a kernel with anywidget, rather than a terminal."""
    kernel: Any = getattr(shell, "kernel", None)
    return kernel is not None and importlib.util.find_spec("anywidget") is not None
