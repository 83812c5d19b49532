"""Command line: ``python -m notebook_ext.lesson editions FOLDER``, or ``puzzles``."""

from __future__ import annotations

import json
import pathlib
import sys

from notebook_ext.lesson.editions import EDITIONS, make_editions
from notebook_ext.lesson.puzzles import NOTEBOOK, puzzle_notebook


def main(arguments: list[str]) -> int:
    """Write the editions of the lessons, or the notebook of puzzles."""
    match arguments:
        case ["editions", folder]:
            written = make_editions(pathlib.Path(folder))
            print(f"{len(written)} notebooks in {folder}: {', '.join(EDITIONS)}")
        case ["puzzles"]:
            NOTEBOOK.write_text(json.dumps(puzzle_notebook(), indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
            print(NOTEBOOK.name)
        case _:
            print("Usage: python -m notebook_ext.lesson editions FOLDER, or puzzles", file=sys.stderr)
            return 2
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
