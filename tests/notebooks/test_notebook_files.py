"""Test each notebook file: size, leftovers of a kernel, and the parts of a lesson.

The parts are a question, predictions, exercises, solutions and a note for teachers.
"""

from __future__ import annotations

import itertools
import json
import pathlib
import re

import pytest

from notebook_ext.glossary import TERMS
from tests.notebooks.notebook_runner import NOTEBOOKS, NOTEBOOKS_DIR, SHORT_PATH, read, solutions

EACH = pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda p: p.stem)
LONGEST = 25
"""Most minutes of a lesson; a second part says how long it takes."""
MOST_NEW_TERMS = 5
EMPHASIS = {
    *("tracer", "guards view", "backward", "list", "who needs this value, and when?", "repair", "one", "one block"),
    *("limited by blocks per multiprocessor", "decomposed"),
}
"""Words in bold that are no terms: names of views, steps of a method, and stress."""
LINK = re.compile(r"\]\(([^)#\s]+)(#[^)\s]*)?\)")


def prose(path: pathlib.Path) -> str:
    """All markdown of a notebook."""
    return "\n\n".join(c.source for c in read(path).cells if c.cell_type == "markdown")


@EACH
def test_the_file_is_small_and_holds_no_leftovers(path: pathlib.Path) -> None:
    """A notebook has at most 500 KB and no leftovers, and its cells were executed in order.

    Leftovers are widget state, widget views, execution times and temporary paths. Every cell was executed.
    """
    text = path.read_text(encoding="utf-8")
    assert len(text.encode()) <= 500_000
    notebook = json.loads(text)
    assert set(notebook["metadata"]) == {"kernelspec", "language_info"}
    for leftover in ("widget-view", "/tmp/", "ipykernel_", "0x7f", "iopub.execute_input"):
        assert leftover not in text
    counts = [c["execution_count"] for c in notebook["cells"] if c["cell_type"] == "code"]
    assert counts == list(range(1, len(counts) + 1))


@EACH
def test_cells_have_names(path: pathlib.Path) -> None:
    """Ids are words, each once, so that a difference says where it is."""
    ids = [c.id for c in read(path).cells]
    assert len(set(ids)) == len(ids)
    assert all(re.fullmatch(r"[a-z]+(-[a-z0-9]+)*", id) for id in ids)


@EACH
def test_a_notebook_asks_and_lets_do(path: pathlib.Path) -> None:
    """A notebook opens with its title, minutes and question, and asks the learner to act.

    It has predictions with answers, and exercises with hints, checks and solutions.
    """
    cells = {c.id: c for c in read(path).cells}
    opening = next(iter(cells.values())).source
    assert re.match(r"# \d\d · .+", opening)
    assert re.search(r"\*\d\d minutes\. The question: .+\?", opening)
    assert ("150-minute path" in opening) == (path.stem[:2] in SHORT_PATH)
    code = {id: c.source for id, c in cells.items() if c.cell_type == "code"}
    asked = re.findall(r"^(\w+) = predict\(", "\n".join(code.values()), re.MULTILINE)
    assert len(asked) >= 2
    for name in asked:
        assert f"{name}.reveal(" in "\n".join(code.values())
    exercises = {id.removeprefix("exercise-") for id in code if id.startswith("exercise-")}
    assert exercises == {id.removeprefix("check-") for id in code if id.startswith("check-")} == set(solutions(path))
    assert all(code[f"check-{n}"].startswith(f"%%check Exercise {n}\n") for n in exercises)
    assert prose(path).count("<summary>Hint") >= len(exercises)


def test_terms_are_in_the_glossary_and_few_are_new() -> None:
    """Each term in bold is in the glossary, and no lesson has more than five new ones."""
    known = {form for term in TERMS for form in (term.lower(), term.lower() + "s")} | {"fused"}
    seen: set[str] = set()
    for path in NOTEBOOKS:
        cells = [c for c in read(path).cells if c.cell_type == "markdown" and c.id not in ("closing", "nodes-text")]
        text = "\n\n".join(c.source for c in cells if not c.id.startswith("exercise"))
        bold = {word.lower() for word in re.findall(r"\*\*([^*\n]+)\*\*", text)} - EMPHASIS
        assert bold <= known, f"{path.stem}: {sorted(bold - known)}"
        assert len(bold - seen) <= MOST_NEW_TERMS, f"{path.stem}: {sorted(bold - seen)}"
        seen |= bold


@EACH
def test_the_note_for_teachers_is_there(path: pathlib.Path) -> None:
    """Aims, timing and usual misunderstandings; the timing is what the notebook says."""
    note = (NOTEBOOKS_DIR / "teaching" / path.name).with_suffix(".md").read_text(encoding="utf-8")
    assert re.findall(r"^## (.+)$", note, re.MULTILINE) == ["Aims", "Timing", "Usual misunderstandings"]
    minutes = re.search(r"\*(\d\d) minutes", prose(path))
    assert minutes
    assert f"{minutes.group(1)} minutes" in note
    assert 15 <= int(minutes.group(1)) <= LONGEST


@EACH
def test_predictions_come_after_the_code_they_ask_about(path: pathlib.Path) -> None:
    """The cell after a prediction defines nothing: its code came before the question."""
    code = [c for c in read(path).cells if c.cell_type == "code"]
    for cell, following in itertools.pairwise(code):
        if cell.id.startswith("predict-"):
            assert not re.search(r"^(def|class) ", following.source, re.MULTILINE), following.id


def test_the_short_path_fits_into_its_time() -> None:
    """The notebooks of the 150-minute path fit into 150 minutes, with a half-hour break."""
    minutes = [int(re.search(r"\*(\d\d) minutes", prose(p)).group(1)) for p in NOTEBOOKS if p.stem[:2] in SHORT_PATH]  # type: ignore[union-attr]
    assert len(minutes) == len(SHORT_PATH)
    assert 110 <= sum(minutes) <= 150


@pytest.mark.parametrize(
    "page", [*NOTEBOOKS, *sorted(NOTEBOOKS_DIR.rglob("*.md"))], ids=lambda p: str(p.relative_to(NOTEBOOKS_DIR))
)
def test_links_lead_somewhere(page: pathlib.Path) -> None:
    """Every link to a file or heading leads to one that exists.

    A heading is looked up on the page that the link names.
    """
    text = prose(page) if page.suffix == ".ipynb" else page.read_text(encoding="utf-8")
    for target, heading in LINK.findall(text):
        if target.startswith("http"):
            continue
        there = (page.parent / target).resolve()
        assert there.exists(), target
        if heading:
            headings = re.findall(r"^#+ (.+)$", there.read_text(encoding="utf-8"), re.MULTILINE)
            anchors = {re.sub(r"[^\w\- ]", "", h.lower()).replace(" ", "-") for h in headings}
            assert heading[1:] in anchors, heading
