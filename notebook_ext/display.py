"""Displays a session below a cell: a summary that needs no kernel, then the widget."""

from __future__ import annotations

import html
import importlib.util
import math
import os
import pathlib
import secrets
from collections.abc import Mapping
from typing import Any

from IPython.core.interactiveshell import InteractiveShell
from IPython.display import display

from engine.observe.compare_sessions import compare_sessions
from engine.records.guards import CallExplanation
from engine.records.session import Session
from notebook_ext.compare_with_torch import ResultDifference, TorchComparison
from notebook_ext.notebook_html import OUTPUT_METADATA_KEY
from notebook_ext.views.comparison.session_comparison import comparison_html, comparison_text
from notebook_ext.views.format_text import one_line
from notebook_ext.views.guards import HYPOTHETICAL_CALL
from notebook_ext.views.home import Replay
from notebook_ext.views.plan import plans
from notebook_ext.views.static_snapshot.render import snapshot_html, snapshot_text, summary_html
from notebook_ext.views.summary import summary

MAX_ROWS = 60
COLUMN_TITLES = ("call", "value", "type", "ours and torch.compile", "ours and eager", "torch.compile and eager")
CELL = "padding:2px 12px 2px 0;text-align:left;vertical-align:top"
NUMBER = "padding:2px 12px 2px 0;text-align:right;font-variant-numeric:tabular-nums"
STYLE = "font-family:var(--jp-ui-font-family,system-ui,sans-serif);font-size:13px;line-height:18px;margin:4px 0"
SNAPSHOT_KB = 92
"""Size limit of the static snapshot in kB.

A cell may add 100 kB to a notebook; the rest is for the summary.
"""
REPORT_ENV = "COMPILE_EXPLORER_REPORT"
"""Environment variable of a kernel that runs for a report."""
DETERMINISTIC_ENV = "COMPILE_EXPLORER_STEADY"
"""Environment variable of a kernel whose outputs go into version control.

The display waits for background work and shows no times.
"""
BACKGROUND_TIMEOUT = 120.0
_report_sessions: list[Session] = []


def show_session(
    shell: InteractiveShell,
    session: Session,
    *,
    static: bool = True,
    others: Mapping[str, Session] | None = None,
    name: str = "this session",
    after: Session | None = None,
    replay: Replay | None = None,
    editor: Any = None,
    view: str = "",
) -> None:
    """Display a session below a cell.

    With ``static`` off, the notebook stores only the summary line, no tables and pictures. ``others`` are
    sessions by name that the explorer can compare with this one, which is called ``name`` there. The view
    that was open on ``after``, the session of the previous run, opens again, else ``view``. ``replay`` runs the cell and
    an edited text of it; ``editor`` is the explorer's.
    """
    if os.environ.get(DETERMINISTIC_ENV) and session.compiler == "engine":
        _wait(session, BACKGROUND_TIMEOUT)
    # Libraries that display at the end of a cell (matplotlib's inline figures) do so now, above the explorer.
    shell.events.trigger("post_execute")
    # No widget of a deterministic run is seen, so nothing replaces its summaries.
    id = "" if os.environ.get(DETERMINISTIC_ENV) else f"summary-{secrets.token_hex(4)}"
    shown = mime_bundle(session, static=static, summary_id=id)
    display(shown, raw=True, metadata=_report_metadata(session))
    if has_widgets(shell):
        from notebook_ext.widgets.explorer import Explorer, last_view_of

        view = (last_view_of(after) if after is not None else "") or view
        display(
            Explorer(
                session,
                on_verify=lambda: verify(session),
                on_replay=replay,
                editor=editor,
                view=view,
                others=others,
                name=name,
                summary_id=id,
            )
        )


def verify(session: Session) -> None:
    """Check a session's kernels; results appear as they arrive."""
    from engine import api

    api.verify(session)


def _report_metadata(session: Session) -> dict[str, Any]:
    """Return metadata that names the session of an output, if a report is being written.

    The session is retained until the report ends, when all its kernels are compiled, and then saved.
    """
    if not os.environ.get(REPORT_ENV):
        return {}
    if session not in _report_sessions:
        _report_sessions.append(session)
    return {OUTPUT_METADATA_KEY: {"session": _report_sessions.index(session)}}


def save_report_sessions(folder: str, seconds: float) -> None:
    """Wait for background work, then save every displayed session as ``<number>.json``.

    Called in the kernel at the end of a report.
    """
    for number, session in enumerate(_report_sessions):
        if session.compiler == "engine":
            _wait(session, seconds)
        session.save(pathlib.Path(folder) / f"{number}.json")


def _wait(session: Session, seconds: float) -> None:
    from engine import api

    api.wait(session, seconds)


def show_summary(session: Session) -> None:
    """Display the summary of a second session, without its explorer."""
    display(mime_bundle(session, static=False), raw=True)


def explore(shell: InteractiveShell, session: Session) -> None:
    """Display a session on request; in a terminal, all of it as text."""
    if has_widgets(shell):
        show_session(shell, session, view="devices" if plans.get(session) is not None else "")
    else:
        print(snapshot_text(session))


def show_guards_of_call(shell: InteractiveShell, session: Session | None, explanation: CallExplanation) -> None:
    """Display the guards of an entry against a hypothetical call.

    The entry is the one that the call would use, else the first one whose guard fails. Without widgets
    nothing is displayed.
    """
    if session is None or not has_widgets(shell) or not _matches_session(session, explanation):
        return
    from notebook_ext.widgets.explorer import Explorer

    entry = explanation.hit or explanation.guard_failures[0].entry
    display(
        Explorer(
            session,
            on_verify=lambda: verify(session),
            view=f"guards|{entry}|call={HYPOTHETICAL_CALL}",
            asked=explanation,
        )
    )


def _matches_session(session: Session, explanation: CallExplanation) -> bool:
    """Return True if the explained entries are those of the session, with as many guards."""
    counts = {c.id: len(c.guards.guards) for c in session.compilations if c.guards}
    num_results = {entry: len(results) for entry, results in explanation.results.items()}
    return bool(num_results) and all(counts.get(entry) == count for entry, count in num_results.items())


def show_session_comparison(shell: InteractiveShell, first: Session, second: Session, before: str, after: str) -> None:
    """Display the changes between two sessions, labeled ``before`` and ``after``."""
    comparison = compare_sessions(first, second)
    text = comparison_text(comparison, before, after)
    if has_widgets(shell):
        from notebook_ext.widgets.explorer import Explorer

        display({"text/html": comparison_html(comparison, before, after), "text/plain": text}, raw=True)
        display(Explorer(second, others={before: first}, name=after, view="compare"))
    else:
        print(text)


def show_torch_comparison(session: Session, compared: TorchComparison) -> None:
    """Display the result of torch.compile for the same calls.

    It shows the summary, the numeric differences, and the differences in graphs, breaks, guards and times.
    """
    if compared.session is None:
        return
    show_summary(compared.session)
    names = ("ours", "torch.compile")
    comparison = compare_sessions(session, compared.session)
    bundle = {
        "text/plain": f"{result_table_text(compared)}\n\n{comparison_text(comparison, *names)}",
        "text/html": f'<div style="{STYLE}">{result_table_html(compared)}</div>{comparison_html(comparison, *names)}',
    }
    display(bundle, raw=True)


_FAILED_WIDGET = ".jp-OutputArea-child>.jp-OutputArea-output.jupyter-widgets:not(:has(*))"
"""Selector of the output where JupyterLab reports that a widget's model is gone."""
REOPENED = (
    f"<style>.jp-OutputArea-child:has([data-explorer-summary])+{_FAILED_WIDGET}{{display:none}}</style>"
    '<div style="color:var(--jp-ui-font-color2,#757575)">Run the cell for the interactive explorer.</div>'
)
"""Hides that error below a summary, and says how to get the explorer back."""


def mime_bundle(session: Session, *, static: bool, summary_id: str = "") -> dict[str, str]:
    """Return the summary as a MIME bundle; text from the user is escaped.

    The explorer that is given ``summary_id`` hides all of it while it is live. Without one, the snapshot is folded.
    """
    timed = not os.environ.get(DETERMINISTIC_ENV)
    head = f'<div style="{STYLE}">{summary_html(session, timed=timed)}{REOPENED if summary_id else ""}</div>'
    shown = head + (snapshot_html(session, SNAPSHOT_KB, timed=timed, unfolded=bool(summary_id)) if static else "")
    if summary_id:
        shown = f'<div data-explorer-summary="{html.escape(summary_id)}">{shown}</div>'
    plan = plans.get(session)
    return {"text/html": shown, "text/plain": summary(session, timed=timed).text if plan is None else str(plan)}


def has_widgets(shell: InteractiveShell) -> bool:
    """Return True if widgets can be shown: a kernel with anywidget, not a terminal."""
    kernel: Any = getattr(shell, "kernel", None)
    return kernel is not None and importlib.util.find_spec("anywidget") is not None


def result_table_text(compared: TorchComparison) -> str:
    """Return the table as text in columns."""
    table = [COLUMN_TITLES, *map(_row_cells, compared.rows[:MAX_ROWS])]
    widths = [max(len(row[i]) for row in table) for i in range(len(COLUMN_TITLES))]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in table]
    return "\n".join(["Largest difference of any element", *lines, *_omitted_rows_line(compared)])


def result_table_html(compared: TorchComparison) -> str:
    """Return the table as HTML without scripts; all text is escaped."""
    heads = "".join(
        f'<th scope="col" style="{NUMBER if i > 2 else CELL};font-weight:600">{h}</th>'
        for i, h in enumerate(COLUMN_TITLES)
    )
    rows = "".join(_row_html(_row_cells(row)) for row in compared.rows[:MAX_ROWS])
    rest = "".join(f"<div>{html.escape(line)}</div>" for line in _omitted_rows_line(compared))
    caption = '<caption style="text-align:left;padding:0 0 2px">Largest difference of any element</caption>'
    return f'<table style="border-collapse:collapse;margin:6px 0">{caption}<tr>{heads}</tr>{rows}</table>{rest}'


def _row_html(cells: tuple[str, ...]) -> str:
    return (
        "<tr>"
        + "".join(f'<td style="{NUMBER if i > 2 else CELL}">{html.escape(c)}</td>' for i, c in enumerate(cells))
        + "</tr>"
    )


def _row_cells(row: ResultDifference) -> tuple[str, ...]:
    differences = (row.ours_vs_torch, row.ours_vs_eager, row.torch_vs_eager)
    return (str(row.call), one_line(row.value, 60), one_line(row.type, 40), *map(_format_difference, differences))


def _format_difference(value: float | None) -> str:
    if value is None:
        return "–"
    return "not the same kind" if math.isinf(value) else f"{value:.2g}"


def _omitted_rows_line(compared: TorchComparison) -> list[str]:
    left = len(compared.rows) - MAX_ROWS
    return [f"… and {left} more values"] if left > 0 else []
