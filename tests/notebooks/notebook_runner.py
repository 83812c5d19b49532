"""Run the notebooks for the tests, with their exercises and solutions.

Each notebook runs once, with both.
"""

from __future__ import annotations

import copy
import pathlib
import re
from dataclasses import dataclass
from typing import Any

import nbformat

from notebook_ext.notebook_report import execute_notebook, strip_report_metadata

NOTEBOOKS_DIR = pathlib.Path(__file__).parents[2] / "notebooks"
NOTEBOOKS = tuple(sorted(NOTEBOOKS_DIR.glob("[0-9][0-9]_*.ipynb")))
SHORT_PATH = ("00", "02", "03", "04", "08", "10")
"""The 150-minute path."""

SMALL_COMPILER_CELLS = (
    *("graph-code", "operations-code", "interpreter-code", "handlers-code", "operators-code", "control-code"),
    *("guards-code", "simplify-code", "loops-code", "llvm-code", "machine-code", "compile-code"),
)
"""The cells of lesson 12 that are the compiler."""

MEMORY_CELL = "print(*(l.split()[1] for l in open('/proc/self/status') if l.startswith('VmRSS')))"
"""Prints the kernel's resident memory in kB. Its worker processes end when they are idle."""


@dataclass(frozen=True)
class Run:
    """Hold the result of one notebook execution.

    ``solved`` maps the id of a check cell to its output after the exercise was solved. ``megabytes`` is the kernel's
    resident memory after the last cell.
    """

    notebook: Any
    solved: dict[str, str]
    problem: str
    megabytes: int


def read(path: pathlib.Path) -> Any:
    """A notebook as it is committed."""
    return nbformat.read(path, as_version=4)  # type: ignore[no-untyped-call]


def plain_python(source: str) -> str:
    """A cell without its magics."""
    return "\n".join(line for line in source.splitlines() if not line.lstrip().startswith("%"))


def solutions(path: pathlib.Path) -> dict[str, str]:
    """Code by exercise number, from the page of solutions."""
    text = (NOTEBOOKS_DIR / "solutions" / f"{path.stem}.md").read_text(encoding="utf-8")
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
    """Execute a notebook as it stands, then solve its exercises in order.

    A learner would do the same.
    """
    notebook = read(path)
    count = len(notebook.cells)
    for number, code in solutions(path).items():
        solution = nbformat.v4.new_code_cell(code)
        again = copy.deepcopy(next(c for c in notebook.cells if c.id == f"check-{number}"))
        again.id = f"solved-{number}"
        notebook.cells += [solution, again]
    notebook.cells.append(nbformat.v4.new_code_cell(MEMORY_CELL))
    problem = execute_notebook(notebook, NOTEBOOKS_DIR, folder, steady=True)
    megabytes = int(text_of(notebook.cells[-1]) or 0) // 1024
    solved = {c.id.replace("solved", "check"): text_of(c) for c in notebook.cells[count:] if c.id.startswith("solved-")}
    notebook.cells = notebook.cells[:count]
    return Run(strip_report_metadata(notebook), solved, problem, megabytes)
