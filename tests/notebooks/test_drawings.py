"""Test the drawings of the lessons: their source, words, layout and contrast."""

from __future__ import annotations

import itertools
import re
import xml.etree.ElementTree as ET
from typing import NamedTuple

import pytest

from tests.notebooks import pictures
from tests.notebooks.drawing import CHARACTER, COLORS, KINDS, Box, places_of, svg_of
from tests.notebooks.lesson_drawings import DRAWINGS, FOLDER
from tests.notebooks.notebook_runner import NOTEBOOKS, NOTEBOOKS_DIR
from tests.notebooks.test_notebook_files import prose

SHOWN = re.compile(r"!\[(.+)\]\(drawings/([\w-]+)\.svg\)")
WORDS = {**{name: drawing.says for name, drawing in DRAWINGS.items()}, pictures.ANNOTATED.stem: pictures.EXPLORER_SAYS}


class Shown(NamedTuple):
    """A drawing in a lesson."""

    lesson: str
    says: str
    name: str


def shown() -> list[Shown]:
    """All drawings that lessons show."""
    return [Shown(path.stem[:2], *found) for path in NOTEBOOKS for found in SHOWN.findall(prose(path))]


def test_each_lesson_shows_its_drawings_with_their_words() -> None:
    """Every lesson has a drawing; each is shown once, in its lesson, with its text."""
    found = shown()
    assert {s.lesson for s in found} == {path.stem[:2] for path in NOTEBOOKS}
    assert sorted(s.name for s in found) == sorted(WORDS)
    assert {path.stem for path in FOLDER.iterdir()} == set(WORDS)
    for drawing in found:
        assert drawing.name.startswith(f"{drawing.lesson}-")
        assert drawing.says == WORDS[drawing.name]


@pytest.mark.parametrize("name", DRAWINGS)
def test_a_drawing_is_what_the_code_makes(name: str) -> None:
    """The committed file is the one that ``make pictures`` writes, and it is XML."""
    text = (FOLDER / f"{name}.svg").read_text(encoding="utf-8")
    assert text == svg_of(DRAWINGS[name]), "run `make pictures`"
    ET.fromstring(text)


@pytest.mark.parametrize("name", DRAWINGS)
def test_boxes_hold_their_text_and_stay_apart(name: str) -> None:
    """Boxes do not overlap, and text fits into its box or beside its arrow."""
    drawing = DRAWINGS[name]
    places = places_of(drawing)
    for first, second in itertools.combinations(places.values(), 2):
        assert (
            first.x + first.width <= second.x
            or second.x + second.width <= first.x
            or first.y + first.height <= second.y
            or second.y + second.height <= first.y
        )
    for box in (box for row in drawing.rows for box in row if isinstance(box, Box)):
        assert box.text_width <= places[box.key].width
    for link in (link for link in drawing.links if link.says):
        start, end = places[link.start], places[link.end]
        between = max(end.x - start.x - start.width, start.x - end.x - end.width)
        is_level = abs(start.middle[1] - end.middle[1]) < 1
        assert not is_level or len(link.says) * CHARACTER <= between, link


def luminance(color: str) -> float:
    """Relative luminance of a color as WCAG defines it."""
    parts = [int(color[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    red, green, blue = (p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4 for p in parts)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


@pytest.mark.parametrize("theme", [0, 1], ids=["light", "dark"])
def test_text_has_enough_contrast(theme: int) -> None:
    """Text on each kind of box, and labels on the ground, have a contrast of 4.5."""
    pairs = [("ink", kind) for kind in (*KINDS, "ground")] + [("quiet", "ground")]
    for text, ground in pairs:
        dark, light = sorted(luminance(COLORS[name][theme]) for name in (text, ground))
        assert (light + 0.05) / (dark + 0.05) >= 4.5, (text, ground)


def test_the_annotated_explorer_names_its_parts() -> None:
    """The tour explains each letter of the picture, and the picture loads nothing."""
    text = pictures.ANNOTATED.read_text(encoding="utf-8")
    ET.fromstring(text)
    assert not re.search(r'href="(?!data:)', text)
    tour = prose(NOTEBOOKS_DIR / "00_tour.ipynb")
    for letter in pictures.EXPLORER_PARTS:
        assert f">{letter}</text>" in text
        assert f"| {letter} | " in tour
