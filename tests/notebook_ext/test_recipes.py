"""The page of recipes: each block runs, after the blocks above it."""

from __future__ import annotations

import pathlib
import re
from typing import Any

import pytest

import engine
from engine.ir.pass_set import active_passes
from notebook_ext.views.recipes import recipes_by_view

PAGE = pathlib.Path(__file__).parents[2] / "notebooks" / "reference" / "RECIPES.md"
SECTIONS = re.findall(r"(?:## ([^\n]+)\n\n)?```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)


@pytest.fixture(scope="module")
def names() -> dict[str, Any]:
    """The names that the blocks define, as in one notebook."""
    engine.reset()
    return {"__name__": "recipes"}


@pytest.mark.parametrize(("title", "text"), SECTIONS, ids=[title or "setup" for title, _ in SECTIONS])
def test_recipe(title: str, text: str, names: dict[str, Any], tmp_path: pathlib.Path) -> None:
    """A block runs without an error, and leaves no pass registered."""
    path = tmp_path / "recipe.py"
    path.write_text(text, encoding="utf-8")
    exec(compile(text, str(path), "exec"), names)
    assert active_passes.passes == (), title


def test_there_are_twenty_recipes() -> None:
    """The page has twenty blocks with a title, after the setup."""
    assert len([title for title, _ in SECTIONS if title]) == 20


def test_views_name_recipes_of_the_page() -> None:
    """Each recipe that a view lists is on the page, and each of the page is listed."""
    listed = {title for titles in recipes_by_view().values() for title in titles}
    assert listed == {title for title, _ in SECTIONS if title}
