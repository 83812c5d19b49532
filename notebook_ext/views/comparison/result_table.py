"""Table of ``--compare``: differences between this compiler, torch.compile and eager."""

from __future__ import annotations

import html
import math

from notebook_ext.compare_with_torch import ResultDifference, TorchComparison
from notebook_ext.views.format_text import one_line

MAX_ROWS = 60
COLUMN_TITLES = ("call", "value", "type", "ours and torch.compile", "ours and eager", "torch.compile and eager")
CELL = "padding:2px 12px 2px 0;text-align:left;vertical-align:top"
NUMBER = "padding:2px 12px 2px 0;text-align:right;font-variant-numeric:tabular-nums"


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
