"""The notebooks as the tests see them: their exercises, their solutions, and one run of each with both."""

from __future__ import annotations

import copy
import pathlib
import re
from dataclasses import dataclass
from typing import Any

import nbformat

from notebook_ext.report import execute, without_marks

HOME = pathlib.Path(__file__).parents[2] / "notebooks"
NOTEBOOKS = tuple(sorted(HOME.glob("[0-9][0-9]_*.ipynb")))
PATH = ("00", "02", "03", "04", "08", "10")
"""The 150-minute path."""


@dataclass(frozen=True)
class Run:
    """One execution. ``solved`` holds, by the id of a check cell, what it said once the exercise was solved."""

    notebook: Any
    solved: dict[str, str]
    problem: str


def read(path: pathlib.Path) -> Any:
    """A notebook as it is committed."""
    return nbformat.read(path, as_version=4)  # type: ignore[no-untyped-call]


def solutions(path: pathlib.Path) -> dict[str, str]:
    """Code by exercise number, from the page of solutions."""
    text = (HOME / "solutions" / f"{path.stem}.md").read_text(encoding="utf-8")
    parts = re.split(r"^## Exercise (\d+).*$", text, flags=re.MULTILINE)[1:]
    found = {}
    for number, body in zip(parts[::2], parts[1::2], strict=True):
        code = re.search(r"```python\n(.*?)```", body, re.DOTALL)
        assert code, f"the solution of exercise {number} in {path.stem} has no code"
        found[number] = code.group(1)
    return found


def text_of(cell: Any) -> str:
    """What a cell printed and showed, as plain text."""
    parts = []
    for output in cell.get("outputs", ()):
        data = output.get("data", {})
        parts.append(output.get("text") or data.get("text/plain") or "\n".join(output.get("traceback", ())))
    return "\n".join(parts)


def run(path: pathlib.Path, folder: pathlib.Path) -> Run:
    """Execute a notebook as a learner who first runs each exercise as it stands, then with its solution."""
    notebook = read(path)
    solved_with = solutions(path)
    for cell in [c for c in notebook.cells if c.id.startswith("check-")]:
        number = cell.id.removeprefix("check-")
        solution = nbformat.v4.new_code_cell(solved_with[number])  # type: ignore[no-untyped-call]
        again = copy.deepcopy(cell)
        solution.id, again.id = f"solved-{number}", f"solved-check-{number}"
        place = next(i for i, c in enumerate(notebook.cells) if c.id == cell.id) + 1
        notebook.cells[place:place] = [solution, again]
    problem = execute(notebook, HOME, folder, steady=True)
    solved = {c.id.removeprefix("solved-"): text_of(c) for c in notebook.cells if c.id.startswith("solved-check-")}
    notebook.cells = [c for c in notebook.cells if not c.id.startswith("solved-")]
    renumber(notebook)
    return Run(without_marks(notebook), solved, problem)


def renumber(notebook: Any) -> None:
    """Execution counts as if the cells that were added had not been there."""
    count = 0
    for cell in notebook.cells:
        if cell.cell_type == "code" and cell.execution_count is not None:
            count += 1
            cell.execution_count = count
            for output in cell.outputs:
                if output.output_type == "execute_result":
                    output.execution_count = count
