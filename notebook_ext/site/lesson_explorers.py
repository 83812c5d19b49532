"""Explorers of the lessons' cells: recorded sessions, written as standalone pages.

Sessions come from a run of each lesson, which is repeated when the lesson or a package changes. Without a run,
the cells of the sessions in ``notebooks/sessions`` have an explorer, and no others.
"""

from __future__ import annotations

import functools
import hashlib
import json
import pathlib
import shutil
import tempfile
from collections.abc import Mapping
from typing import Any

from engine.records.counts import breaks_of
from engine.records.session import Session
from engine.replace_file import replace_file
from notebook_ext.notebook_html import OUTPUT_METADATA_KEY
from notebook_ext.notebook_report import REPO_ROOT, execute_notebook
from notebook_ext.widgets.standalone_page import write_page

NOTEBOOKS = REPO_ROOT / "notebooks"
COMMITTED: Mapping[str, Mapping[str, str]] = {
    "08_loops_to_triton": {"recorded": "gated_norm.json", "norm": "gated_norm.json"},
    "09_ptx_and_sass": {"kernel": "three_targets.json"},
}
"""By lesson and cell: the committed session that the cell shows."""
INDEX = "cells.json"

Explorers = Mapping[str, pathlib.Path]
"""Sessions of one lesson by cell id."""


def committed_explorers(lesson: str) -> Explorers:
    """Return the committed sessions of a lesson by cell id."""
    return {cell: NOTEBOOKS / "sessions" / file for cell, file in COMMITTED.get(lesson, {}).items()}


def recorded_explorers(lesson: pathlib.Path, folder: pathlib.Path) -> Explorers:
    """Return the sessions of a lesson by cell id.

    The lesson runs unless ``folder`` has them already.

    Raises:
        RuntimeError: a cell failed.
    """
    home = folder / lesson.stem
    digest = hashlib.sha256(_packages() + lesson.read_bytes()).hexdigest()
    if not _is_current(home, digest):
        shutil.rmtree(home, ignore_errors=True)
        home.mkdir(parents=True)
        cells = _run(lesson, home)
        with replace_file(home / INDEX) as stream:
            stream.write(json.dumps({"digest": digest, "cells": cells}).encode())
    index = json.loads((home / INDEX).read_text(encoding="utf-8"))
    return {cell: home / f"{number}.json" for cell, number in index["cells"].items()}


def write_explorer(session: pathlib.Path, page: pathlib.Path, title: str) -> None:
    """Write the standalone page that shows a saved session."""
    loaded = Session.load(session)
    with replace_file(page) as stream:
        write_page(loaded, stream, title, view=opening_view(loaded))


def opening_view(session: Session) -> str:
    """Return the view that opens first.

    It is the tracer if the session has steps, Home if there is something to fix, else the linked view.
    """
    if session.level == "steps":
        return "tracer"
    return "home" if session.failures or any(breaks_of(session.compilations)) else "linked"


def _run(lesson: pathlib.Path, home: pathlib.Path) -> dict[str, int]:
    """Run a lesson, keep its sessions in ``home``, and return their numbers by cell id."""
    import nbformat

    notebook: Any = nbformat.read(lesson, as_version=4)  # type: ignore[no-untyped-call]
    with tempfile.TemporaryDirectory() as saved:
        problem = execute_notebook(notebook, lesson.resolve().parent, pathlib.Path(saved), steady=True)
        if problem:
            raise RuntimeError(f"A cell of {lesson.name} failed:\n{problem}")
        for file in pathlib.Path(saved).glob("*.json"):
            shutil.copy(file, home / file.name)
    return {
        cell.id: number
        for cell in notebook.cells
        for output in cell.get("outputs", ())
        if (number := output.get("metadata", {}).get(OUTPUT_METADATA_KEY, {}).get("session")) is not None
        and (home / f"{number}.json").exists()
    }


def _is_current(home: pathlib.Path, digest: str) -> bool:
    index = home / INDEX
    return index.is_file() and bool(json.loads(index.read_text(encoding="utf-8"))["digest"] == digest)


@functools.cache
def _packages() -> bytes:
    hasher = hashlib.sha256()
    for package in ("engine", "notebook_ext"):
        for path in sorted((REPO_ROOT / package).rglob("*.py")):
            if "site" not in path.relative_to(REPO_ROOT).parts:
                hasher.update(path.read_bytes())
    return hasher.digest()
