"""Predictions and checks, as a lesson uses them: in a terminal, and as a widget."""

from __future__ import annotations

import os

import pytest
import torch

from engine.errors import BadArgument
from notebook_ext.display import DETERMINISTIC_ENV
from notebook_ext.lesson import Prediction, count_operators, predictions, race, show_times
from notebook_ext.lesson.ranks import run_ranks
from notebook_ext.widgets.question import QuestionWidget


def test_a_prediction_without_widgets(shell) -> None:
    """Without widgets, predict shows the question, its choices and the answer as text.

    The answer appears beside the chosen one, or alone.
    """
    shell.run("from notebook_ext.lesson import predict")
    asked = shell.run("p = predict('How many?', [1, 2])").text
    assert "Predict: How many?" in asked
    assert "Choose one: 1 · 2" in asked
    assert "The answer: 2\nBecause." in shell.run("p.reveal(2, 'Because.')").text
    shell.run("p.choose(1)")
    assert "You predicted: 1. The answer: 2" in shell.run("p.reveal(2)").text
    shell.run("p.choose(2)")
    assert "As you predicted: 2" in shell.run("p.reveal(2)").text


def test_a_prediction_is_one_of_the_choices() -> None:
    """Anything else is refused in one sentence that lists the choices."""
    with pytest.raises(BadArgument, match=r"^3 is not one of the choices: 1, 2\.$"):
        Prediction("?", [1, 2]).choose(3)
    with pytest.raises(BadArgument, match=r"^3 is not one of the choices: 1, 2\.$"):
        Prediction("?", [1, 2]).reveal(3)


def test_the_widget_and_the_prediction_agree() -> None:
    """What is clicked in the widget is what was predicted; the answer reaches the widget."""
    made = Prediction("?", ["a", "b"])
    made._widget = QuestionWidget(question="?", choices=["a", "b"])
    assert made.chosen == ""
    made._widget.chosen = 1
    assert made.chosen == "b"
    made.reveal("a")
    assert made._widget.answer == 0


@pytest.mark.parametrize(
    ("body", "told"),
    [
        ("assert True", "Exercise 1: Solved."),
        ("assert 1 == 2, 'one is not two.'", "Exercise 1: Not yet.\none is not two."),
        (
            "assert missing",
            "Exercise 1: Not yet.\nname 'missing' is not defined. Import or define it, or run all cells above first.",
        ),
        ("1 / 0", "Exercise 1: Not yet.\nZeroDivisionError: division by zero"),
        ("assert (", "Exercise 1: Not yet.\nSyntaxError"),
    ],
)
def test_a_check_says_what_is_missing(shell, body: str, told: str) -> None:
    """A check shows its first failing assertion or other error, and raises nothing."""
    ran = shell.run(f"%%check Exercise 1\n{body}")
    assert ran.succeeded
    assert told in ran.text


def test_a_check_names_the_line_of_an_exception(shell) -> None:
    """An exception in the learner's function is shown with the line that raised it."""
    shell.run("def last_row(x):\n    size = len(x)\n    return x[size]")
    text = shell.run("%%check Exercise 1\nassert last_row([1, 2]) == 2").text
    assert "IndexError: list index out of range (in: return x[size])" in text


def test_a_check_leaves_no_names(shell) -> None:
    """A check reads the notebook's names, and the names that it binds are gone afterwards."""
    shell.run("here = 1")
    assert "Solved" in shell.run("%%check\nhere += 1\nthere = here\nassert there == 2").text
    assert shell.run("here, 'there' in dir()").value == (1, False)


def test_text_never_becomes_html(shell, monkeypatch: pytest.MonkeyPatch) -> None:
    """What a question, an answer or a message says is escaped."""
    shown: list[dict[str, str]] = []
    monkeypatch.setattr(predictions, "display", lambda data, **_: shown.append(data))
    shell.run("from notebook_ext.lesson import predict\npredict('<b>?</b>', ['<i>']).reveal('<i>', '<u>')")
    shell.run("%%check <s>\nassert False, '<em>'")
    page = "".join(data["text/html"] for data in shown)
    assert "&lt;em&gt;" in page
    for tag in ("<b>?", "<i>", "<u>", "<s>", "<em>"):
        assert tag not in page


def test_glossary(shell) -> None:
    """``%glossary`` explains a word."""
    assert shell.run("%glossary guards").text.startswith("guard: A condition that the compiler assumed")


def test_a_race_shows_both_times(capsys, monkeypatch: pytest.MonkeyPatch) -> None:
    """The ratio is above 1 if the second function is faster; a saved output has no number."""
    monkeypatch.delenv("COMPILE_EXPLORER_STEADY", raising=False)
    ratio = race(lambda n: sum(range(1000 * n)), lambda n: n, 100, names=("long", "short"))
    assert ratio > 1
    first, second = capsys.readouterr().out.splitlines()
    assert first.startswith("long   █")
    assert first.count("█") > second.count("█")
    assert second.startswith("short  █")
    assert second.endswith(f"{ratio:.1f} times as fast")
    monkeypatch.setenv("COMPILE_EXPLORER_STEADY", "1")
    race(lambda n: n, lambda n: n, 1)
    assert capsys.readouterr().out.endswith("compiled  time: as measured on your machine\n")


def test_operators_of_a_call_are_counted() -> None:
    """Each operator counts once a call; stderr is back afterwards."""
    before = os.fstat(2)
    seen = count_operators(lambda x: x.sin() + x.sin(), torch.ones(3))
    assert (seen["sin"], seen["add"], seen["cos"]) == (2, 1, 0)
    assert os.path.samestat(os.fstat(2), before)


def test_a_time_that_is_much_longer_is_said_so(capsys, monkeypatch: pytest.MonkeyPatch) -> None:
    """A time of many times the first one is not called "0.0 times as fast"."""
    monkeypatch.delenv(DETERMINISTIC_ENV, raising=False)
    show_times({"eager": 0.01, "compiled": 0.002, "first call": 2.5})
    shown = capsys.readouterr().out
    assert "5.0 times as fast" in shown
    assert "250 times as long" in shown


@pytest.mark.thorough
def test_ranks_run_at_the_same_time_and_a_failure_is_named() -> None:
    """Ranks exchange values; the error of one of them ends all and is shown."""
    program = """
import torch
import torch.distributed as dist
dist.init_process_group("gloo", init_method=f"file://{meeting_point}", rank=rank, world_size=2)
total = torch.tensor([1.0 + rank])
dist.all_reduce(total)
print(rank, total.item())
assert FAILING != rank, "broken here"
dist.destroy_process_group()
"""
    assert run_ranks(program.replace("FAILING", "2")) == ["0 3.0", "1 3.0"]
    with pytest.raises(RuntimeError, match="broken here"):
        run_ranks(program.replace("FAILING", "1"))
