"""Test the puzzles: the code to begin with fails with a reason, a solution passes."""

from __future__ import annotations

import contextlib
import io
import json
from typing import Any

import pytest
import torch

from engine.errors import BadArgument
from notebook_ext.lesson.puzzles import LEVELS, NOTEBOOK, PUZZLES, check_puzzle, puzzle_notebook
from tests.notebooks.test_exercise_checks import ANSWERS, BEGIN

LEAST = 24


def solved() -> dict[int, str]:
    """A solution by puzzle."""
    parts = BEGIN.split((ANSWERS / "puzzles.txt").read_text(encoding="utf-8"))[1:]
    return {int(number): code.strip() + "\n" for number, code in zip(parts[::4], parts[3::4], strict=True)}


def names_after(code: str) -> dict[str, Any]:
    """Names that a cell defines."""
    names: dict[str, Any] = {"torch": torch}
    exec(compile(code, "<puzzle>", "exec"), names)
    return names


def test_the_puzzles_are_graded() -> None:
    """There are enough, from easy to hard, each level has some, and each has a solution."""
    levels = [p.level for p in PUZZLES.values()]
    assert len(levels) >= LEAST
    assert levels == sorted(levels)
    assert set(levels) == set(range(len(LEVELS)))
    assert set(solved()) == set(PUZZLES)


def test_the_notebook_is_that_of_the_module() -> None:
    """``python -m notebook_ext.lesson puzzles`` writes the committed notebook."""
    assert json.loads(NOTEBOOK.read_text(encoding="utf-8")) == puzzle_notebook()


def test_unknown_puzzles_and_missing_functions_are_named() -> None:
    """A number without a puzzle, and a cell without ``f``, are errors with a reason."""
    with pytest.raises(BadArgument, match="no puzzle 99"):
        check_puzzle(99, {})
    with pytest.raises(AssertionError, match="define a function f"):
        check_puzzle(1, {})


@pytest.mark.thorough
@pytest.mark.parametrize("number", PUZZLES)
def test_a_puzzle_rejects_its_start_and_accepts_its_solution(number: int) -> None:
    """The start is rejected with a sentence; the solution is accepted."""
    with contextlib.redirect_stdout(io.StringIO()):
        with pytest.raises(AssertionError) as caught:
            check_puzzle(number, names_after(PUZZLES[number].start))
        message, _, _ = str(caught.value).partition("\nassert ")  # where pytest rewrites the package's assertions
        assert message.rstrip().endswith(".")
        check_puzzle(number, names_after(solved()[number]))
