"""Test the editions of the lessons: student, reading, teacher."""

from __future__ import annotations

import json
import pathlib
import re
import shutil
from typing import Any

import pytest
from IPython.core.interactiveshell import InteractiveShell

from notebook_ext.lesson.__main__ import main
from notebook_ext.lesson.editions import EDITIONS, make_editions
from notebook_ext.lesson.predictions import REVEALS
from tests.notebooks.notebook_runner import NOTEBOOKS, NOTEBOOKS_DIR
from tests.notebooks.test_notebook_files import LINK


@pytest.fixture(scope="module")
def editions(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    """All editions, written once."""
    folder = tmp_path_factory.mktemp("editions")
    written = make_editions(folder).lessons
    assert len(written) == len(EDITIONS) * len(list(NOTEBOOKS_DIR.glob("*.ipynb")))
    return folder


def test_what_a_learner_changed_is_kept(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Changed files and the learner's own stay, and a sentence says so."""
    source = tmp_path / "notebooks"
    shutil.copytree(
        NOTEBOOKS_DIR, source, ignore=shutil.ignore_patterns("[1-9]*.ipynb", "0[2-9]*.ipynb", "puzzles.ipynb")
    )
    monkeypatch.setattr("notebook_ext.lesson.editions.NOTEBOOKS", source)
    folder = tmp_path / "editions"
    assert main(["editions", str(folder)]) == 0
    assert "Kept" not in capsys.readouterr().out
    changed, unchanged = folder / "student" / "00_tour.ipynb", folder / "student" / "01_bytecode_to_graph.ipynb"
    changed.write_text("mine", encoding="utf-8")
    (folder / "student" / "notes.md").write_text("my notes", encoding="utf-8")
    new = (source / unchanged.name).read_text(encoding="utf-8").replace("bytecode", "Bytecode")
    (source / unchanged.name).write_text(new, encoding="utf-8")
    (source / "README.md").unlink()
    assert main(["editions", str(folder)]) == 0
    assert changed.read_text(encoding="utf-8") == "mine"
    assert (folder / "student" / "notes.md").read_text(encoding="utf-8") == "my notes"
    assert "Bytecode" in unchanged.read_text(encoding="utf-8")
    assert not (folder / "student" / "README.md").exists()
    assert "Kept as you changed them: student/00_tour.ipynb. Rename or delete a file" in capsys.readouterr().out


def code_of(path: pathlib.Path) -> dict[str, Any]:
    """Code cells by id."""
    return {c["id"]: c for c in json.loads(path.read_text(encoding="utf-8"))["cells"] if c["cell_type"] == "code"}


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda p: p.stem)
def test_the_student_edition_spoils_nothing(path: pathlib.Path, editions: pathlib.Path) -> None:
    """No outputs, no call of ``reveal``; each answer is in the folder of answers."""
    cells = code_of(editions / "student" / path.name)
    hidden = json.loads((editions / "student" / REVEALS / f"{path.stem}.json").read_text(encoding="utf-8"))
    assert all(not c["outputs"] and c["execution_count"] is None for c in cells.values())
    text = "\n".join("".join(c["source"]) for c in cells.values())
    assert ".reveal(" not in text
    asked = re.findall(r"^(\w+) = predict\(", text, re.MULTILINE)
    assert sorted(asked) == sorted(hidden)
    for name in asked:
        assert f"%reveal {path.stem} {name}" in text
        assert f"{name}.reveal(" in hidden[name]


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda p: p.stem)
def test_the_reading_and_teacher_editions_hold_everything(path: pathlib.Path, editions: pathlib.Path) -> None:
    """The reading edition is the source; the teacher edition adds note and solutions."""
    source = json.loads(path.read_text(encoding="utf-8"))
    assert json.loads((editions / "reading" / path.name).read_text(encoding="utf-8")) == source
    cells = {c["id"]: c for c in json.loads((editions / "teacher" / path.name).read_text(encoding="utf-8"))["cells"]}
    assert "Usual misunderstandings" in "".join(cells["teacher-note"]["source"])
    for exercise in [c["id"] for c in source["cells"] if c["id"].startswith("exercise-") and c["cell_type"] == "code"]:
        assert "```python" in "".join(cells[exercise.replace("exercise", "solution")]["source"])


@pytest.mark.parametrize("edition", EDITIONS)
def test_links_of_an_edition_lead_somewhere(edition: str, editions: pathlib.Path) -> None:
    """Every relative link of an edition leads to one of its files."""
    for page in (editions / edition).rglob("*.md"):
        for target, _ in LINK.findall(page.read_text(encoding="utf-8")):
            assert target.startswith("http") or (page.parent / target).exists(), f"{page.name}: {target}"


def test_reveal_asks_for_a_prediction_first(
    tmp_path: pathlib.Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    request: pytest.FixtureRequest,
) -> None:
    """``%reveal`` asks for a choice first; with one, or with ``now``, it shows the answer."""
    (tmp_path / REVEALS).mkdir()
    (tmp_path / REVEALS / "one.json").write_text(json.dumps({"ops": 'ops.reveal("3", "Three rounds.")'}))
    monkeypatch.chdir(tmp_path)
    InteractiveShell.clear_instance()
    shell = InteractiveShell.instance()
    request.addfinalizer(InteractiveShell.clear_instance)
    assert shell.run_cell("%load_ext notebook_ext").success

    def shown(code: str) -> str:
        capsys.readouterr()
        assert shell.run_cell(code).success
        return str(capsys.readouterr().out)

    assert "Run all cells above" in shown("%reveal one ops")
    shell.run_cell("from notebook_ext.lesson import Prediction\nops = Prediction('How many?', [1, 3])")
    assert "Predict first" in shown("%reveal one ops")
    assert "The answer: 3" in shown("%reveal one ops now")
    shell.run_cell("ops.choose(1)")
    assert "You predicted: 1. The answer: 3" in shown("%reveal one ops")
