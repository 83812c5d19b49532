"""Hold the check of every exercise against right and wrong answers.

``answers/NOTEBOOK.txt`` holds the answers. ``=== 2 right`` begins an answer to exercise 2 that must be accepted,
``=== 2 wrong: WORDS`` one that must be rejected with a message that has these words.
"""

from __future__ import annotations

import contextlib
import io
import pathlib
import re
import sys
import types
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

import pytest
import torch

import engine
from tests.notebooks.notebook_runner import (
    NOTEBOOKS,
    NOTEBOOKS_DIR,
    SMALL_COMPILER_CELLS,
    plain_python,
    read,
    solutions,
)

ANSWERS = pathlib.Path(__file__).with_name("answers")
BEGIN = re.compile(r"^=== (\d+) (right|wrong)(?:: (.+))?$", re.MULTILINE)
RIGHT, WRONG = 5, 10
"""Least number of answers of each kind that an exercise has."""
CONTEXT: Mapping[str, tuple[str, ...]] = {
    "00_tour": ("code-02",),
    "09_ptx_and_sass": (),
    "10_debug_a_model": ("setup", "model", "batches"),
    "11_stock_torch_compile": ("setup", "trace"),
    "12_small_compiler": ("setup", *SMALL_COMPILER_CELLS),
}
"""Cells whose names the exercises use, by notebook; others need their setup."""
LISTINGS = """
import collections, torch, engine
kernel = engine.Session.load("sessions/three_targets.json").compilations[0].kernels[0]
listings = {(t.target, l.stage): l for t in kernel.targets for l in t.listings}
"""
LESSONS = [path for path in NOTEBOOKS if solutions(path)]


def answers(path: pathlib.Path) -> Iterator[tuple[str, bool, str, str]]:
    """Yield exercise, whether the answer is right, the words of the message, and the code."""
    text = (ANSWERS / f"{path.stem}.txt").read_text(encoding="utf-8")
    parts = BEGIN.split(text)[1:]
    for exercise, kind, words, code in zip(parts[::4], parts[1::4], parts[2::4], parts[3::4], strict=True):
        yield exercise, kind == "right", words or "", code.strip() + "\n"


def message(cells: Mapping[str, str], names: dict[str, Any], exercise: str, code: str) -> str:
    """The message of the check for an answer; empty if it is accepted.

    The answer runs in the lesson's own namespace, as in a notebook, and leaves it as it was.
    """
    before = dict(names)
    torch.manual_seed(0)
    try:
        with contextlib.redirect_stdout(io.StringIO()):
            exec(compile(plain_python(cells[f"exercise-{exercise}"]), "<exercise>", "exec"), names)
            exec(compile(code, "<answer>", "exec"), names)
            exec(compile(plain_python(cells[f"check-{exercise}"]), "<check>", "exec"), names)
    except AssertionError as error:
        return str(error) or "no message"
    except Exception as error:
        return f"raised {type(error).__name__}: {error}"
    finally:
        names.clear()
        names.update(before)
    return ""


@pytest.mark.parametrize("path", LESSONS, ids=lambda p: p.stem)
def test_each_exercise_has_many_answers(path: pathlib.Path) -> None:
    """Each exercise of a lesson has five right and ten wrong answers."""
    tally = Counter((exercise, is_right) for exercise, is_right, _, _ in answers(path))
    for exercise in solutions(path):
        assert tally[exercise, True] >= RIGHT, f"exercise {exercise} has {tally[exercise, True]} right answers"
        assert tally[exercise, False] >= WRONG, f"exercise {exercise} has {tally[exercise, False]} wrong answers"


@pytest.mark.thorough
@pytest.mark.parametrize("path", LESSONS, ids=lambda p: p.stem)
def test_checks_accept_right_answers_and_explain_wrong_ones(
    path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each right answer is accepted; each wrong one gets the message that names its mistake."""
    monkeypatch.chdir(NOTEBOOKS_DIR)
    cells = {c.id: c.source for c in read(path).cells}
    lesson = types.ModuleType("lesson")
    monkeypatch.setitem(sys.modules, "lesson", lesson)  # until torch 2.12, Dynamo imports the module of a function
    names = vars(lesson)
    if path.stem == "09_ptx_and_sass":
        exec(LISTINGS, names)
    for cell in CONTEXT.get(path.stem, ("setup",)):
        with contextlib.redirect_stdout(io.StringIO()):
            exec(compile(plain_python(cells[cell]), f"<{cell}>", "exec"), names)
    solved, problems = solutions(path), []
    before = ""
    for exercise, is_right, words, code in answers(path):
        if before and exercise != before:
            exec(solved[before], names)
        before = exercise
        shown = message(cells, names, exercise, code)
        failed = bool(shown) if is_right else not shown or words not in shown
        if failed:
            problems.append(f"{exercise} {'right' if is_right else f'wrong: {words}'}\n{code}    got: {shown!r}")
    engine.reset()
    torch.compiler.reset()
    assert not problems, f"{len(problems)} of {path.stem}\n" + "\n".join(problems)
