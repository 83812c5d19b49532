"""Editions of the lessons, made from one source each.

Command line: ``python -m notebook_ext.lesson editions FOLDER``. ``student``: no outputs; answers to predictions are hidden until ``%reveal`` asks for them. ``reading``: as committed, with
outputs. ``teacher``: with the teacher's note on top and the solution below each exercise.
"""

from __future__ import annotations

import copy
import hashlib
import json
import pathlib
import re
import shutil
import tempfile
from dataclasses import dataclass
from typing import Any

from notebook_ext.lesson.predictions import REVEALS

__all__ = ["EDITIONS", "MadeEditions", "make_editions", "student_edition", "teacher_edition"]

NOTEBOOKS = pathlib.Path(__file__).resolve().parents[2] / "notebooks"
EDITIONS = ("student", "reading", "teacher")
REVEAL = re.compile(r"^(\w+)\.reveal\(", re.MULTILINE)
WRITTEN = ".written.json"
"""File with the digest of each file of the editions as it was written."""
EXERCISE, REVEAL_ID = "exercise-", "reveal-"
TEACHING_LINK = re.compile(r"\[([^\]]+)\]\((?:\.\./)?teaching/[^)]*\)")


def student_edition(notebook: dict[str, Any], lesson: str) -> tuple[dict[str, Any], dict[str, str]]:
    """Return a lesson without outputs, and the code of its answers by prediction."""
    edition = copy.deepcopy(notebook)
    hidden = {}
    for cell in edition["cells"]:
        if cell["cell_type"] != "code":
            continue
        cell["outputs"], cell["execution_count"] = [], None
        reveal = REVEAL.search("".join(cell["source"])) if cell["id"].startswith(REVEAL_ID) else None
        if reveal:
            hidden[reveal.group(1)] = "".join(cell["source"])
            cell["source"] = [f"%reveal {lesson} {reveal.group(1)}"]
        if cell["id"].startswith("check-"):
            cell["metadata"] = {"jupyter": {"source_hidden": True}}
    return edition, hidden


def teacher_edition(notebook: dict[str, Any], note: str, solutions: str) -> dict[str, Any]:
    """Return a lesson with the teacher's note and a solution after each exercise."""
    edition = copy.deepcopy(notebook)
    parts = re.split(r"^## Exercise (\d+)", solutions, flags=re.MULTILINE)[1:]
    by_exercise = dict(zip(parts[::2], parts[1::2], strict=True))
    cells: list[dict[str, Any]] = []
    for cell in edition["cells"]:
        cells.append(cell)
        if len(cells) == 1:
            cells.append(_markdown("teacher-note", f"> **For teachers**\n\n{note}"))
        number = str(cell["id"]).removeprefix(EXERCISE)
        if str(cell["id"]).startswith(EXERCISE) and number in by_exercise:
            cells.append(_markdown(f"solution-{number}", f"**Solution**{by_exercise[number].rstrip()}"))
    edition["cells"] = cells
    return edition


@dataclass(frozen=True)
class MadeEditions:
    """The lessons of all editions, and the changed files, which were not replaced."""

    lessons: tuple[pathlib.Path, ...]
    changed: tuple[pathlib.Path, ...]

    @property
    def sentence(self) -> str:
        """Names the changed files and says how to get new ones; empty if none was changed."""
        if not self.changed:
            return ""
        names = ", ".join(f"{p.parent.name}/{p.name}" for p in self.changed[:3])
        more = f" and {len(self.changed) - 3} more" if len(self.changed) > 3 else ""
        return f"Kept as you changed them: {names}{more}. Rename or delete a file to get the new one."


def make_editions(folder: pathlib.Path) -> MadeEditions:
    """Write all editions of all lessons below ``folder``, but no file that was changed."""
    with tempfile.TemporaryDirectory() as fresh:
        for edition in EDITIONS:
            _write_edition(edition, pathlib.Path(fresh) / edition)
        changed = _copy_unless_changed(pathlib.Path(fresh), folder)
    lessons = (folder / edition / source.name for edition in EDITIONS for source in sorted(NOTEBOOKS.glob("*.ipynb")))
    return MadeEditions(tuple(lessons), tuple(changed))


def _write_edition(edition: str, home: pathlib.Path) -> None:
    leave_out = ("teaching",) if edition != "teacher" else ()
    shutil.copytree(NOTEBOOKS, home, ignore=shutil.ignore_patterns("*.ipynb", ".*", *leave_out))
    for page in home.rglob("*.md") if leave_out else ():
        page.write_text(TEACHING_LINK.sub(r"\1", page.read_text(encoding="utf-8")), encoding="utf-8")
    for source in NOTEBOOKS.glob("*.ipynb"):
        _write_lesson(source, edition, home)


def _copy_unless_changed(fresh: pathlib.Path, folder: pathlib.Path) -> list[pathlib.Path]:
    """Copy files, and remove those of earlier editions; return the changed ones.

    A list of digests in the folder has what was written. A file that is not in it is nobody's to overwrite.
    """
    listed = folder / WRITTEN
    written: dict[str, str] = json.loads(listed.read_text(encoding="utf-8")) if listed.exists() else {}
    new = {p.relative_to(fresh).as_posix(): p for p in sorted(fresh.rglob("*")) if p.is_file()}
    changed = []
    for name in sorted({*new, *written}):
        target = folder / name
        content = new[name].read_bytes() if name in new else None
        if target.exists() and target.read_bytes() != content and _digest(target) != written.get(name):
            changed.append(target)
        elif content is not None:
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(content)
        else:
            target.unlink(missing_ok=True)
    _dump({name: _digest(path) for name, path in new.items()}, listed)
    return changed


def _digest(path: pathlib.Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()[:16]


def _write_lesson(source: pathlib.Path, edition: str, home: pathlib.Path) -> None:
    notebook = json.loads(source.read_text(encoding="utf-8"))
    lesson = source.stem
    note, solutions = (NOTEBOOKS / part / f"{lesson}.md" for part in ("teaching", "solutions"))
    if edition == "student":
        notebook, hidden = student_edition(notebook, lesson)
        if hidden:
            (home / REVEALS).mkdir(exist_ok=True)
            _dump(hidden, home / REVEALS / f"{lesson}.json")
    elif edition == "teacher" and note.exists():
        notebook = teacher_edition(notebook, note.read_text(encoding="utf-8"), solutions.read_text(encoding="utf-8"))
    _dump(notebook, home / source.name)


def _dump(data: object, path: pathlib.Path) -> None:
    path.write_text(json.dumps(data, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


def _markdown(name: str, text: str) -> dict[str, Any]:
    return {"cell_type": "markdown", "id": name, "metadata": {}, "source": text.splitlines(keepends=True)}
