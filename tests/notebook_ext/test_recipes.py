"""The page of recipes: each block runs, after the blocks above it."""

from __future__ import annotations

import pathlib
import re
from collections.abc import Iterator
from typing import Any

import pytest

import engine
from engine.ir.pass_set import active_passes
from notebook_ext.views.recipes import FILE, programs, recipes_by_view

SECTIONS = re.findall(r"(?:## ([^\n]+)\n\n)?```python\n(.*?)```", FILE.read_text(encoding="utf-8"), re.DOTALL)


class Page:
    """The blocks of the page as one notebook: each runs once in a process, after all above it."""

    def __init__(self, folder: pathlib.Path) -> None:
        self._folder = folder
        self._names: dict[str, Any] = {"__name__": "recipes"}
        self._outcomes: list[Exception | None] = []

    def outcome(self, index: int) -> Exception | None:
        """Return the error of a block; None if it ran and left no pass registered."""
        while len(self._outcomes) <= index:
            title, text = SECTIONS[len(self._outcomes)]
            path = self._folder / f"recipe_{len(self._outcomes)}.py"
            path.write_text(text, encoding="utf-8")
            try:
                exec(compile(text, str(path), "exec"), self._names)
                assert active_passes.passes == (), title
            except Exception as error:
                self._outcomes.append(error)
            else:
                self._outcomes.append(None)
        return self._outcomes[index]


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Page]:
    """The page, of which this process ran nothing yet, with a cache folder of its own."""
    engine.reset()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        yield Page(tmp_path_factory.mktemp("recipes"))


@pytest.mark.parametrize("index", range(len(SECTIONS)), ids=[title or "setup" for title, _ in SECTIONS])
@pytest.mark.slow  # each block also runs alone, with the blocks that it needs
def test_recipe(index: int, page: Page) -> None:
    """A block runs without an error after those above it, and leaves no pass registered."""
    error = page.outcome(index)
    if error is not None:
        raise error


@pytest.mark.parametrize("title", programs())
@pytest.mark.thorough
def test_a_recipe_runs_alone(title: str, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The explorer shows it with all that it needs, for one cell of a new notebook."""
    engine.reset()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    path = tmp_path / "recipe.py"
    path.write_text(programs()[title], encoding="utf-8")
    exec(compile(programs()[title], str(path), "exec"), {"__name__": "recipe"})
    assert active_passes.passes == ()


def test_a_recipe_has_only_the_blocks_that_it_needs() -> None:
    """The setup comes first; a recipe that needs no other has no other."""
    alone, long = programs()["Fail a test that compiles twice"], programs()["Keep an edited graph in a file"]
    assert [text.startswith("import torch\n") for text in programs().values()] == [True] * len(programs())
    assert "register_pass" not in alone
    assert 'edited = engine.edited(model, {"twice"' in long


def test_there_are_twenty_two_recipes() -> None:
    """The page has twenty-two blocks with a title, after the setup."""
    assert len([title for title, _ in SECTIONS if title]) == 22


def test_views_name_recipes_of_the_page() -> None:
    """Each recipe that a view lists is on the page, and each of the page is listed."""
    listed = {title for titles in recipes_by_view().values() for title in titles}
    assert listed == {title for title, _ in SECTIONS if title}
