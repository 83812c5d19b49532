"""Test the puzzles: the code to begin with fails with a reason, a solution passes."""

from __future__ import annotations

import contextlib
import io
import json
from collections.abc import Iterator
from typing import Any

import pytest
import torch

from engine.errors import BadArgument
from notebook_ext.lesson.__main__ import NOTEBOOK, puzzle_notebook
from notebook_ext.lesson.puzzles import LEVELS, PUZZLES, check_puzzle
from tests.notebooks.test_exercise_checks import ANSWERS, BEGIN

LEAST = 24


def answers() -> Iterator[tuple[int, str | None, str]]:
    """Yield puzzle, words and code; a wrong answer's message has the words, None is right."""
    parts = BEGIN.split((ANSWERS / "puzzles.txt").read_text(encoding="utf-8"))[1:]
    for number, kind, words, code in zip(parts[::4], parts[1::4], parts[2::4], parts[3::4], strict=True):
        yield int(number), None if kind == "right" else words, code.strip() + "\n"


def solved() -> set[int]:
    """Puzzles with a right answer."""
    return {number for number, words, _ in answers() if words is None}


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
    assert solved() == set(PUZZLES)


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
def test_a_puzzle_accepts_right_answers_and_explains_wrong_ones(number: int) -> None:
    """Start and wrong answers are rejected with a sentence; right answers are accepted."""
    tried = [("", PUZZLES[number].start), *((words, code) for puzzle, words, code in answers() if puzzle == number)]
    with contextlib.redirect_stdout(io.StringIO()):
        for words, code in tried:
            if words is None:
                check_puzzle(number, names_after(code))
                continue
            with pytest.raises(AssertionError) as caught:
                check_puzzle(number, names_after(code))
            message, _, _ = str(caught.value).partition("\nassert ")  # where pytest rewrites the package's assertions
            assert message.rstrip().endswith("."), code
            assert words in message, code
