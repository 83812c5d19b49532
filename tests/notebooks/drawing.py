"""Drawings of the lessons as SVG: boxes on a grid, arrows, squares and a plot.

A drawing is data. Its text stays text, and its colors follow the reader's light or dark page.
"""

from __future__ import annotations

from html import escape
from typing import NamedTuple

CHARACTER, CODE_CHARACTER = 7.9, 8.0
"""Widths of a character in pixels: an upper bound for most text of 13 pixels."""
LINE, PADDING, GAP, ROW_GAP, MARGIN, SQUARE = 18, 12, 56, 46, 18, 22
LABEL_HEIGHT, STEEP = 16, 62
COLORS = {
    "ground": ("#ffffff", "#151a21"),
    "ink": ("#1f2328", "#e6edf3"),
    "quiet": ("#57606a", "#a5b1bd"),
    "plain": ("#f3f4f6", "#262d36"),
    "graph": ("#ddebfb", "#173a5e"),
    "kernel": ("#e6dffa", "#3b2d66"),
    "good": ("#d9f2e3", "#12422a"),
    "bad": ("#fde3d3", "#5c2a12"),
}
"""Colors by name, for a light and for a dark page."""
KINDS = tuple(COLORS)[3:]


class Box(NamedTuple):
    """A box with lines of text. ``name`` is what links call it; by default its first line."""

    text: str
    kind: str = "plain"
    name: str = ""
    code: bool = False
    """Whether the text is code, set in a monospaced font."""
    width: float = 0.0
    """Width in pixels; 0 is that of the text."""
    align: str = "middle"

    @property
    def key(self) -> str:
        """Name for links."""
        return self.name or self.text.splitlines()[0]

    @property
    def text_width(self) -> float:
        """Estimated width of the longest line."""
        return max(map(len, self.text.splitlines())) * (CODE_CHARACTER if self.code else CHARACTER)

    @property
    def size(self) -> tuple[float, float]:
        """Width and height."""
        return self.width or self.text_width + 2 * PADDING, len(self.text.splitlines()) * LINE + 2 * PADDING - 4


class Squares(NamedTuple):
    """A grid of squares, one character each.

    ``#`` is full, ``+`` half and ``.`` empty; others are shown as text.
    """

    rows: tuple[str, ...]
    name: str = ""
    kind: str = "graph"

    @property
    def key(self) -> str:
        """Name for links."""
        return self.name

    @property
    def size(self) -> tuple[float, float]:
        """Width and height."""
        return len(self.rows[0]) * SQUARE, len(self.rows) * SQUARE


class Link(NamedTuple):
    """An arrow from one box to another, with words beside it."""

    start: str
    end: str
    says: str = ""
    is_dashed: bool = False


class Drawing(NamedTuple):
    """Rows of boxes, aligned in columns, and the arrows between them.

    ``says`` is the text for readers who do not see the drawing.
    """

    says: str
    rows: tuple[tuple[Box | Squares | None, ...], ...]
    links: tuple[Link, ...] = ()
    gap: float = GAP
    row_gap: float = ROW_GAP
    is_left_aligned: bool = False


class Place(NamedTuple):
    """Rectangle of a box."""

    x: float
    y: float
    width: float
    height: float

    @property
    def middle(self) -> tuple[float, float]:
        """Center."""
        return self.x + self.width / 2, self.y + self.height / 2


def places_of(drawing: Drawing) -> dict[str, Place]:
    """Return where each box is, by its key.

    Raises:
        ValueError: two boxes have the same key.
    """
    columns = max(map(len, drawing.rows))
    widths = [max((r[c].size[0] for r in drawing.rows if c < len(r) and r[c]), default=0.0) for c in range(columns)]  # type: ignore[union-attr]
    found: dict[str, Place] = {}
    y = float(MARGIN)
    for row in drawing.rows:
        tallest = max((box.size[1] for box in row if box), default=0.0)
        x = float(MARGIN)
        for box, column in zip(row, widths, strict=False):
            if box is not None:
                width, height = box.size
                shift = 0.0 if drawing.is_left_aligned else (column - width) / 2
                if box.key in found:
                    raise ValueError(f"two boxes are called {box.key}")
                found[box.key] = Place(x + shift, y + (tallest - height) / 2, width, height)
            x += column + drawing.gap
        y += tallest + drawing.row_gap
    return found


def svg_of(drawing: Drawing) -> str:
    """Return a drawing as SVG.

    Raises:
        KeyError: a link names a box that is not there.
    """
    places = places_of(drawing)
    boxes = {box.key: box for row in drawing.rows for box in row if box}
    width = max(p.x + p.width for p in places.values()) + MARGIN
    height = max(p.y + p.height for p in places.values()) + MARGIN
    parts = [_link(places, link) for link in drawing.links]
    parts += [_draw(boxes[key], place) for key, place in places.items()]
    light, dark = (";".join(f"--{name}:{pair[theme]}" for name, pair in COLORS.items()) for theme in (0, 1))
    style = (
        f"svg{{{light};font:13px system-ui,'Segoe UI',Helvetica,Arial,sans-serif}}"
        f"@media (prefers-color-scheme:dark){{svg{{{dark}}}}}"
        "text{fill:var(--ink)}.c{font-family:ui-monospace,Menlo,Consolas,'DejaVu Sans Mono',monospace}.q{fill:var(--quiet)}"
        ".l{stroke:var(--quiet);stroke-width:1.6;fill:none}"
        + "".join(f".{kind}{{fill:var(--{kind});stroke:var(--quiet)}}" for kind in KINDS)
    )
    marker = (
        '<marker id="a" viewBox="0 0 10 10" refX="9" refY="5" markerWidth="7" markerHeight="7" orient="auto">'
        '<path d="M0 0L10 5L0 10z" style="fill:var(--quiet)"/></marker>'
    )
    ground = f'<rect width="{width:.0f}" height="{height:.0f}" rx="8" style="fill:var(--ground)"/>'
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:.0f} {height:.0f}" width="{width:.0f}" height="{height:.0f}" role="img">'
        f"<title>{escape(drawing.says)}</title><style>{style}</style><defs>{marker}</defs>{ground}\n"
        + "\n".join(parts)
        + "\n</svg>\n"
    )


def _draw(box: Box | Squares, place: Place) -> str:
    return _squares(box, place) if isinstance(box, Squares) else _box(box, place)


def _box(box: Box, place: Place) -> str:
    x = place.x + place.width / 2 if box.align == "middle" else place.x + PADDING
    lines = "".join(
        f'<text x="{x:.0f}" y="{place.y + PADDING + 11 + index * LINE:.0f}" text-anchor="{box.align}"{_code(box)} xml:space="preserve">{escape(line)}</text>'
        for index, line in enumerate(box.text.splitlines())
    )
    frame = f'<rect class="{box.kind}" x="{place.x:.0f}" y="{place.y:.0f}" width="{place.width:.0f}" height="{place.height:.0f}" rx="5"/>'
    return (frame if box.kind != "none" else "") + lines


def _code(box: Box) -> str:
    return ' class="c"' if box.code else ""


def _squares(grid: Squares, place: Place) -> str:
    parts = []
    for row, line in enumerate(grid.rows):
        for column, mark in enumerate(line):
            x, y = place.x + column * SQUARE, place.y + row * SQUARE
            kind = {"#": grid.kind, "+": "bad"}.get(mark, "plain" if mark in ". " else grid.kind)
            parts.append(f'<rect class="{kind}" x="{x:.0f}" y="{y:.0f}" width="{SQUARE}" height="{SQUARE}"/>')
            if mark not in "#. ":
                shown = "½" if mark == "+" else escape(mark)
                parts.append(f'<text x="{x + SQUARE / 2:.0f}" y="{y + 15:.0f}" text-anchor="middle">{shown}</text>')
    return "".join(parts)


def _link(places: dict[str, Place], link: Link) -> str:
    """Return an arrow: sideways where the boxes are nearly side by side, else down or up."""
    start, end = places[link.start], places[link.end]
    (x1, y1), (x2, y2) = start.middle, end.middle
    between = max(end.x - start.x - start.width, start.x - end.x - end.width)
    if between > abs(y1 - y2) and abs(y1 - y2) < STEEP:
        sign = 1 if x2 > x1 else -1
        x1, x2 = x1 + sign * start.width / 2, x2 - sign * (end.width / 2 + 2)
    else:
        sign = 1 if y2 > y1 else -1
        y1, y2 = y1 + sign * start.height / 2, y2 - sign * (end.height / 2 + 2)
    dash = ' stroke-dasharray="5 4"' if link.is_dashed else ""
    line = f'<path class="l" d="M{x1:.0f} {y1:.0f}L{x2:.0f} {y2:.0f}" marker-end="url(#a)"{dash}/>'
    if not link.says:
        return line
    x, y, wide = (x1 + x2) / 2, (y1 + y2) / 2, len(link.says) * CHARACTER + 6
    if abs(y1 - y2) < LABEL_HEIGHT:
        return f'{line}<text class="q" x="{x:.0f}" y="{y - 6:.0f}" text-anchor="middle">{escape(link.says)}</text>'
    behind = f'<rect x="{x - wide / 2:.0f}" y="{y - 9:.0f}" width="{wide:.0f}" height="18" style="fill:var(--ground)"/>'
    return f'{line}{behind}<text class="q" x="{x:.0f}" y="{y + 4:.0f}" text-anchor="middle">{escape(link.says)}</text>'
