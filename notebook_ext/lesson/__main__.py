"""Command line: ``python -m notebook_ext.lesson editions FOLDER``, or ``puzzles``."""

from __future__ import annotations

import json
import pathlib
import sys
from typing import Any

from notebook_ext.lesson.editions import EDITIONS, make_editions
from notebook_ext.lesson.puzzles import LEVELS, PUZZLES

NOTEBOOK = pathlib.Path(__file__).resolve().parents[2] / "notebooks" / "puzzles.ipynb"
INTRODUCTION = """# Puzzles

{count} puzzles, from easy to hard. Each asks for a function `f` with which the compiler does something that you can see in its records. A cell that
begins with `%%puzzle` runs, and says whether `f` does it. Any function that does it is right. `%%compile` shows what your function does now.
"""


def main(arguments: list[str]) -> int:
    """Write the editions of the lessons, or the notebook of puzzles."""
    match arguments:
        case ["editions", folder]:
            made = make_editions(pathlib.Path(folder))
            print(f"{len(made.lessons)} notebooks in {folder}: {', '.join(EDITIONS)}")
            if made.changed:
                print(made.sentence)
        case ["puzzles"]:
            NOTEBOOK.write_text(json.dumps(puzzle_notebook(), indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
            print(NOTEBOOK.name)
        case _:
            print("Usage: python -m notebook_ext.lesson editions FOLDER, or puzzles", file=sys.stderr)
            return 2
    return 0


def puzzle_notebook() -> dict[str, Any]:
    """Return the notebook of all puzzles, without outputs."""
    cells = [
        _cell("markdown", "opening", INTRODUCTION.format(count=len(PUZZLES))),
        _cell("code", "setup", "import torch\n\nimport engine\n\n%load_ext notebook_ext"),
    ]
    level = -1
    for number, puzzle in PUZZLES.items():
        head = f"## Level {puzzle.level + 1}: {LEVELS[puzzle.level]}\n\n" if puzzle.level != level else ""
        level = puzzle.level
        cells.append(_cell("markdown", f"goal-{number}", f"{head}**{number}.** {puzzle.goal}"))
        cells.append(_cell("code", f"puzzle-{number}", f"%%puzzle {number}\n{puzzle.start}"))
    kernel = {"display_name": "Python 3 (ipykernel)", "language": "python", "name": "python3"}
    metadata = {"kernelspec": kernel, "language_info": {"name": "python"}}
    return {"cells": cells, "metadata": metadata, "nbformat": 4, "nbformat_minor": 5}


def _cell(kind: str, name: str, text: str) -> dict[str, Any]:
    cell: dict[str, Any] = {"cell_type": kind, "id": name, "metadata": {}}
    if kind == "code":
        cell |= {"execution_count": None, "outputs": []}
    return cell | {"source": text.rstrip("\n").splitlines(keepends=True)}


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
