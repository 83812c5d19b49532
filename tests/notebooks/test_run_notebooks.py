"""Run every notebook from top to bottom on a CPU and check its output and exercises.

Exercises fail unsolved and pass solved.
"""

from __future__ import annotations

import difflib
import json
import pathlib
import sys
from typing import Any

import nbformat
import pytest
import torch

from tests.notebooks.expected_text import EXPECTED_TEXT
from tests.notebooks.notebook_runner import NOTEBOOKS, read, run, text_of

WRITTEN_WITH = "2.13.", (3, 11)
"""The torch and the Python whose outputs are committed.

Decompositions of torch number the nodes of our graphs, and stock torch.compile has other guards in other versions. Other
Pythons compile a function to other bytecode, which lessons list.
"""

MAX_MEGABYTES = 560 if torch.version.cuda is None else 660
"""Memory of an open lesson's kernel.

Torch's build for CUDA takes up to 76 MB more than the one for CPUs. About 140 MB more of torch's files are in the memory of a kernel that is not forked and reads them itself.
"""


def lines(notebook: Any) -> list[str]:
    """A notebook as the lines of its file."""
    return str(nbformat.writes(notebook)).splitlines()  # type: ignore[no-untyped-call]


@pytest.mark.thorough
@pytest.mark.usefixtures("forked_kernels")
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda p: p.stem)
def test_a_notebook_runs_and_teaches(
    path: pathlib.Path, tmp_path: pathlib.Path, request: pytest.FixtureRequest
) -> None:
    """A notebook runs without errors, on torch 2.13 and Python 3.11 with its saved outputs.

    They are compared byte for byte, and its kernel is small enough. Each cell shows its expected text. Checks say "Not yet"
    before the solution and "Solved" after it.
    """
    found = run(path, tmp_path)
    assert found.problem == ""
    texts = {cell.id: text_of(cell) for cell in found.notebook.cells if cell.cell_type == "code"}
    for cell, wanted in EXPECTED_TEXT[path.stem].items():
        for words in [wanted] if isinstance(wanted, str) else wanted:
            assert words in texts[cell], f"{cell} shows {texts[cell]!r}"
    checks = [cell for cell in texts if cell.startswith("check-")]
    assert checks, "a notebook without exercises"
    for cell in checks:
        assert ": Not yet." in texts[cell], f"{cell} passes unsolved: {texts[cell]}"
        assert ": Solved." in found.solved[cell], f"{cell} fails solved: {found.solved[cell]}"
    if request.config.getoption("--accept"):
        nbformat.write(found.notebook, path)  # type: ignore[no-untyped-call]
    written_torch, written_python = WRITTEN_WITH
    if not torch.__version__.startswith(written_torch):
        return
    assert 0 < found.megabytes < MAX_MEGABYTES
    if sys.version_info[:2] != written_python:
        return
    changed = list(difflib.unified_diff(lines(read(path)), lines(found.notebook), "committed", "now", lineterm="", n=0))
    assert not changed, "make notebooks, and review: " + json.dumps([c[:300] for c in changed[:12]], indent=1)
