"""The demo without the tour: a short notebook, its page, and what is said of it."""

from __future__ import annotations

import pathlib

import nbformat
import pytest

from notebook_ext.commands import demo
from notebook_ext.commands.console import main


@pytest.fixture
def without_tour(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> pathlib.Path:
    """A folder to work in, and a package that was installed without its notebooks."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(demo, "TOUR", tmp_path / "no_tour.ipynb")
    return tmp_path


def test_the_short_notebook_is_one(without_tour: pathlib.Path) -> None:
    """It follows Jupyter's own schema."""
    path = demo.demo_notebook(without_tour / "report")
    nbformat.validate(nbformat.read(path, as_version=4))


@pytest.mark.thorough
@pytest.mark.usefixtures("forked_kernels")
def test_what_is_said_is_on_the_page(without_tour: pathlib.Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The page opens on an explorer; only what it shows is announced."""
    assert main(["demo"]) == 0
    said = capsys.readouterr().out
    assert "breaks the graph" in said
    assert "GPT" not in said
    page = without_tour / "report" / "compile_explorer_demo.html"
    assert said.rstrip().endswith(f"{page.as_uri()}#explorer")
    assert 'id="explorer" open' in page.read_text(encoding="utf-8")


@pytest.mark.thorough
@pytest.mark.usefixtures("forked_kernels")
def test_a_failing_cell_still_gives_a_link(
    without_tour: pathlib.Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The folder of the page is relative; the link is whole, and the error is shown."""
    monkeypatch.setattr(demo, "FALLBACK_CELLS", (("code", "1 / 0"),))
    assert main(["demo"]) == 1
    said = capsys.readouterr()
    assert (without_tour / "report" / "compile_explorer_demo.html").as_uri() in said.out
    assert "ZeroDivisionError" in said.err
