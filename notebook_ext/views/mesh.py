"""Picture of a mesh of ranks: a cell for each rank, colored by its class."""

from __future__ import annotations

import base64
import math
from collections.abc import Mapping, Sequence
from html import escape

CLASS_COLORS = ("#0b63a5", "#b04500", "#00705a", "#8f3f78", "#735700", "#4b5966")
"""Colors of classes of ranks; white text on them is readable."""
UNKNOWN = "#8a8a8a"
"""Outline of ranks without a class."""
MAX_NUMBERED = 128
"""Ranks up to which each cell shows its number."""
MAX_CELLS = 4096
"""Ranks that are drawn; a caption counts the rest."""
MAX_COLUMNS = 32
"""Columns of a mesh with one dimension."""


def class_color(number: int) -> str:
    """Return the color of a class of ranks; colors repeat."""
    return CLASS_COLORS[number % len(CLASS_COLORS)]


def mesh_image(sizes: Sequence[int], ranks: Sequence[int], classes: Mapping[int, int]) -> str:
    """Return the mesh as a data URI; ``classes``: number of each rank's class.

    Columns are the last dimension. Ranks without a class are outlined.
    """
    columns = sizes[-1] if len(sizes) > 1 else min(len(ranks), MAX_COLUMNS)
    has_numbers = len(ranks) <= MAX_NUMBERED
    width, height = (34, 22) if has_numbers else (max(3, 900 // max(columns, 60)), 9)
    shown = ranks[:MAX_CELLS]
    cells = []
    for at, rank in enumerate(shown):
        x, y = at % columns * width, at // columns * height
        class_number = classes.get(rank)
        fill = f'fill="{class_color(class_number)}"' if class_number is not None else f'fill="none" stroke="{UNKNOWN}"'
        cells.append(f'<rect x="{x + 1}" y="{y + 1}" width="{width - 2}" height="{height - 2}" {fill}/>')
        if has_numbers:
            color = "#ffffff" if class_number is not None else UNKNOWN
            cells.append(f'<text x="{x + width / 2:g}" y="{y + 15}" fill="{color}">{rank}</text>')
    total = columns * width, math.ceil(len(shown) / columns) * height
    return image_data(
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {total[0]} {total[1]}" width="{total[0]}" height="{total[1]}"'
        f' font-family="sans-serif" font-size="11" text-anchor="middle">{"".join(cells)}</svg>'
    )


def mesh_caption(names: Sequence[str], sizes: Sequence[int], count: int) -> str:
    """Return what rows and columns of the picture are."""
    cut = f" The first {MAX_CELLS:,} of {count:,} ranks are drawn." if count > MAX_CELLS else ""
    if len(sizes) < 2:
        return f"One dimension: {names[0]}={sizes[0]}." + cut
    rows = " x ".join(f"{n}={s}" for n, s in zip(names[:-1], sizes[:-1], strict=True))
    return f"Rows: {rows}; columns: {names[-1]}={sizes[-1]}.{cut}"


def image_data(svg: str) -> str:
    """Return an SVG as a data URI."""
    return f"data:image/svg+xml;base64,{base64.b64encode(svg.encode()).decode()}"


def image(svg_data: str, alt: str, style: str) -> str:
    """Return the HTML of a picture."""
    return f'<img alt="{escape(alt)}" style="{style}" src="{svg_data}">'
