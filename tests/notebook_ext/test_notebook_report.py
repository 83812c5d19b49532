"""A notebook as one page: complete, self-contained, and honest about a failed cell."""

from __future__ import annotations

import html.parser
import pathlib
from typing import Any

import nbformat
import pytest
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook, new_output

from notebook_ext.notebook_html import notebook_page, title_of
from notebook_ext.notebook_report import TOUR, main, strip_kernel_output, write_report

pytestmark = pytest.mark.thorough

LOADING = {"src", "href", "data", "poster", "action", "srcset"}


class Loads(html.parser.HTMLParser):
    """Collects what a page would load."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        for name, value in attrs:
            if name in LOADING and value and not value.startswith(("data:", "#")):
                self.found.append(f"{tag} {name}={value}")
            if name == "srcdoc" and value:
                inner = Loads()
                inner.feed(value)
                self.found += inner.found


def notebook(*outputs: Any) -> Any:
    """A notebook with one code cell that has these outputs."""
    cell = new_code_cell("x = '<b>'", outputs=list(outputs))
    return new_notebook(cells=[new_markdown_cell("# A title\n\nSome *words*."), cell])


def test_all_kinds_of_output_are_shown() -> None:
    """The report holds streams, errors, text, HTML and pictures.

    Terminal colors are left out, and user text is escaped.
    """
    made = notebook_page(
        notebook(
            new_output("stream", name="stdout", text="\x1b[31m<printed>\x1b[0m"),
            new_output("error", ename="E", evalue="v", traceback=["<trace>"]),
            new_output("execute_result", data={"text/plain": "<value>"}),
            new_output("display_data", data={"text/html": "<p>rich</p>", "text/plain": "poor"}),
            new_output("display_data", data={"image/png": "aGk="}),
        ),
        "T",
    )
    for text in (
        "&lt;printed&gt;",
        "&lt;trace&gt;",
        "&lt;value&gt;",
        "<p>rich</p>",
        "data:image/png;base64,aGk=",
        "<em>words</em>",
    ):
        assert text in made
    assert "poor" not in made
    assert "\x1b" not in made


def test_pictures_in_text_are_in_the_page(tmp_path: pathlib.Path) -> None:
    """A picture beside the notebook and one attached to a cell need no file."""
    (tmp_path / "drawn.svg").write_text("<svg xmlns='http://www.w3.org/2000/svg'/>")
    cell = new_markdown_cell("![A drawing](drawn.svg) ![A photo](attachment:photo.png)")
    cell["attachments"] = {"photo.png": {"image/png": "aGk="}}
    made = notebook_page(new_notebook(cells=[cell]), "T", folder=str(tmp_path))
    loads = Loads()
    loads.feed(made)
    assert loads.found == []
    assert 'src="data:image/svg+xml;base64,' in made
    assert 'src="data:image/png;base64,aGk="' in made


def test_the_page_loads_nothing() -> None:
    """No attribute points outside, and the page forbids itself to load anything."""
    made = notebook_page(
        notebook(
            new_output("display_data", data={"text/html": "<p>x</p>"}, metadata={"compile-explorer": {"session": 0}})
        ),
        "T",
        {0: "<p>explorer</p>"},
    )
    loads = Loads()
    loads.feed(made)
    assert loads.found == []
    assert "default-src 'none'" in made
    assert "&lt;p&gt;explorer" in made


def test_dead_outputs_are_left_out() -> None:
    """Widget views and emptied outputs show nothing without a kernel, so they are not kept."""
    kept = strip_kernel_output(
        notebook(
            new_output("display_data", data={"application/vnd.jupyter.widget-view+json": {}, "text/plain": "w"}),
            new_output("display_data", data={"text/plain": ""}),
            new_output("stream", name="stdout", text="kept"),
        )
    )
    assert [o.output_type for o in kept.cells[1].outputs] == ["stream"]


def test_the_title_is_the_first_heading() -> None:
    """Else the given default."""
    assert title_of(notebook(), "d") == "A title"
    assert title_of(new_notebook(), "d") == "d"


def write(path: pathlib.Path, *sources: str) -> pathlib.Path:
    """A notebook file with these code cells."""
    nbformat.write(new_notebook(cells=[new_code_cell(s) for s in sources]), path)
    return path


@pytest.mark.usefixtures("forked_kernels")
def test_a_report_has_results_and_explorers(tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The command exits 0 and prints the path of one report file.

    The file holds the cell's output and a working explorer.
    """
    source = write(
        tmp_path / "n.ipynb",
        "import torch\n%load_ext notebook_ext",
        "%%compile\ndef f(x):\n    return torch.softmax(x * 0.5, dim=-1)\nprint(f(torch.zeros(2, 4)).sum().item())",
    )
    assert main([str(source), "--output", str(tmp_path / "out")]) == 0
    made = pathlib.Path(capsys.readouterr().out.strip())
    assert made == (tmp_path / "out" / "n.html").resolve()
    text = made.read_text()
    assert "2.0" in text
    assert "f</b>: " in text
    assert "srcdoc=" in text
    loads = Loads()
    loads.feed(text)
    assert loads.found == []
    assert nbformat.read(source, 4).cells[1].outputs == []


def test_a_failed_cell_is_said_and_shown(tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]) -> None:
    """It exits 1, and the page shows all up to the error."""
    source = write(tmp_path / "n.ipynb", "print('before')", "1 / 0", "print('after')")
    assert main([str(source), "--output", str(tmp_path / "out")]) == 1
    told = capsys.readouterr()
    assert "ZeroDivisionError" in told.err
    text = pathlib.Path(told.out.strip()).read_text()
    assert "before" in text
    assert "ZeroDivisionError" in text


def test_a_missing_notebook_is_one_sentence(tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]) -> None:
    """It exits 2."""
    assert main([str(tmp_path / "none.ipynb")]) == 2
    assert capsys.readouterr().err.strip() == f"There is no notebook {tmp_path / 'none.ipynb'}."


@pytest.mark.slow
@pytest.mark.usefixtures("forked_kernels")
def test_the_page_of_the_tour_is_below_five_megabytes(tmp_path: pathlib.Path) -> None:
    """The page of the tour is below 5 MB, loads nothing and has no failing cell.

    It holds every explorer with all parts, and the graphs between passes too.
    """
    made, problem = write_report(TOUR, tmp_path)
    assert problem == ""
    assert made.stat().st_size < 5_000_000
    loads = Loads()
    loads.feed(made.read_text(encoding="utf-8"))
    assert [found for found in loads.found if not found.startswith("a ")] == []  # a link is followed only by a person
