"""Building blocks of lessons: predictions, their answers, and exercises with checks."""

from __future__ import annotations

import html
import json
import linecache
import pathlib
import re
import traceback
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from IPython.core.getipython import get_ipython
from IPython.core.interactiveshell import InteractiveShell
from IPython.core.magic import Magics, cell_magic, line_magic, magics_class, no_var_expand
from IPython.display import display

from engine.errors import BadArgument
from notebook_ext.display import has_widgets
from notebook_ext.glossary import explain_term
from notebook_ext.lesson import puzzles
from notebook_ext.views.format_text import one_line

__all__ = ["LessonMagics", "Prediction", "predict"]

REVEALS = "reveals"
"""Folder beside the lessons of a student edition, with the answers to predictions."""
SOLVED, NOT_YET = "Solved", "Not yet"
BOX = "border-left:3px solid {hue};padding:2px 10px;margin:4px 0"
QUESTION_COLOR, RIGHT_COLOR, WRONG_COLOR = "#0b63a5", "#00705a", "#b04500"


class Prediction:
    """Multiple-choice question about the next cell.

    ``ask`` displays it, a click or ``choose`` answers it, and ``reveal`` shows the right answer.
    """

    def __init__(self, question: str, choices: Sequence[object]) -> None:
        self.question = question
        self.choices = tuple(map(str, choices))
        self._chosen = ""
        self._widget: Any = None

    @property
    def chosen(self) -> str:
        """Predicted choice; empty if there is none."""
        at = self._widget.chosen if self._widget is not None else -1
        return self.choices[at] if 0 <= at < len(self.choices) else self._chosen

    def choose(self, choice: object) -> None:
        """Predict without a widget.

        Raises:
            BadArgument: it is none of the choices.
        """
        self._check(choice)
        self._chosen = str(choice)
        if self._widget is not None:
            self._widget.chosen = self.choices.index(self._chosen)

    def reveal(self, answer: object, why: str = "") -> None:
        """Show the right answer beside the prediction.

        Raises:
            BadArgument: the answer is none of the choices.
        """
        self._check(answer)
        right, chosen = str(answer), self.chosen
        if not chosen:
            head, hue = f"The answer: {right}", QUESTION_COLOR
        elif chosen == right:
            head, hue = f"As you predicted: {chosen}", RIGHT_COLOR
        else:
            head, hue = f"You predicted: {chosen}. The answer: {right}", WRONG_COLOR
        if self._widget is not None:
            self._widget.answer = self.choices.index(right)
        _show_box(head, why, hue)

    def _check(self, choice: object) -> None:
        if str(choice) not in self.choices:
            raise BadArgument(f"{choice!s} is not one of the choices: {', '.join(self.choices)}.")

    def ask(self, shell: InteractiveShell | None) -> None:
        """Display the question, with clickable choices if widgets can be shown."""
        _show_box(f"Predict: {self.question}", "Choose one: " + " · ".join(self.choices), QUESTION_COLOR)
        if shell is not None and has_widgets(shell):
            from notebook_ext.widgets.question import QuestionWidget

            self._widget = QuestionWidget(question=self.question, choices=list(self.choices))
            display(self._widget)


def predict(question: str, choices: Sequence[object]) -> Prediction:
    """Ask for a prediction of what the next cell does.

    Call ``reveal`` of the result with the right answer to show whether the prediction holds.
    """
    prediction = Prediction(question, choices)
    prediction.ask(get_ipython())
    return prediction


@magics_class
class LessonMagics(Magics):
    """Magics for exercises and the glossary."""

    shell: InteractiveShell

    @no_var_expand
    @cell_magic
    def check(self, line: str, body: str) -> None:
        """Run assertions about an exercise: ``%%check NAME``.

        The first failed assertion is shown with its message; no error is raised. The cell can read the
        notebook's names but does not change them.
        """
        name = line.strip() or "Exercise"

        def run() -> None:
            code = self.shell.compile(self.shell.transform_cell(body), "<check>", "exec")
            exec(code, dict(self.shell.user_ns))

        _run_check(name, run, self.shell.user_ns)

    @no_var_expand
    @cell_magic
    def puzzle(self, line: str, body: str) -> None:
        """Run a cell and check whether its function ``f`` solves a puzzle: ``%%puzzle NUMBER``."""
        number = int(line) if line.strip().isdigit() else 0

        def run() -> None:
            code = self.shell.compile(self.shell.transform_cell(body), "<puzzle>", "exec")
            exec(code, self.shell.user_ns)
            puzzles.check_puzzle(number, self.shell.user_ns)

        _run_check(f"Puzzle {number}", run, self.shell.user_ns)

    @line_magic
    def reveal(self, line: str) -> None:
        """Show the answer to a prediction of a student edition: ``%reveal LESSON NAME``.

        Without a prediction it asks for one first; ``%reveal LESSON NAME now`` shows the answer all the same.
        """
        lesson, _, rest = line.strip().partition(" ")
        name, _, word = rest.partition(" ")
        asked = self.shell.user_ns.get(name)
        if not isinstance(asked, Prediction):
            _show_box(f"{name or 'Prediction'}: {NOT_YET}.", "Run all cells above first.", WRONG_COLOR)
        elif not asked.chosen and word.strip() != "now":
            hint = f'Choose an answer, or run {name}.choose("..."). %reveal {lesson} {name} now shows it without one.'
            _show_box("Predict first.", hint, QUESTION_COLOR)
        else:
            self.shell.run_cell(hidden_reveal(lesson, name), store_history=False)

    @line_magic
    def glossary(self, line: str) -> None:
        """Show the definition of a term: ``%glossary WORD``. ``%glossary`` shows all terms."""
        print(explain_term(line.strip()))


def hidden_reveal(lesson: str, name: str) -> str:
    """Return the code that reveals the answer to a prediction.

    It is read from the folder ``reveals`` beside the lesson.

    Raises:
        BadArgument: the folder does not have it.
    """
    file = pathlib.Path(REVEALS) / f"{lesson}.json"
    answers = json.loads(file.read_text(encoding="utf-8")) if re.fullmatch(r"\w+", lesson) and file.exists() else {}
    if name not in answers:
        raise BadArgument(f"{file} has no answer to {name}: keep the folder {REVEALS} beside the lesson.")
    return str(answers[name])


def _run_check(name: str, run: Callable[[], None], names: Mapping[str, Any]) -> None:
    """Run the check of an exercise and show its verdict.

    An exception of the learner's code, whose globals are ``names``, is shown with the line.
    """
    try:
        run()
    except AssertionError as error:
        _show_box(f"{name}: {NOT_YET}.", str(error) or "An assertion does not hold.", WRONG_COLOR)
    except NameError as error:
        _show_box(f"{name}: {NOT_YET}.", f"{error}. Import or define it, or run all cells above first.", WRONG_COLOR)
    except Exception as error:
        # Incomplete code raises a private subclass of SyntaxError from Python 3.13 on.
        kind = next(c.__name__ for c in type(error).__mro__ if not c.__name__.startswith("_"))
        text = f"{kind}: {one_line(str(error), 300)}{_line_of(error, names)}"
        _show_box(f"{name}: {NOT_YET}.", text, WRONG_COLOR)
    else:
        _show_box(f"{name}: {SOLVED}.", "", RIGHT_COLOR)


def _line_of(error: BaseException, names: Mapping[str, Any]) -> str:
    """Return the last line of the learner's code that an exception passed, or ""."""
    lines = [
        linecache.getline(frame.f_code.co_filename, line).strip()
        for frame, line in traceback.walk_tb(error.__traceback__)
        if frame.f_globals is names and frame.f_code.co_name != "<module>"
    ]
    return f" (in: {lines[-1]})" if lines and lines[-1] else ""


def _show_box(head: str, body: str, hue: str) -> None:
    """Display one bold line and one line below it, as HTML without scripts and as text."""
    below = f"<br>{html.escape(body)}" if body else ""
    box = f'<div style="{BOX.format(hue=hue)}"><b>{html.escape(head)}</b>{below}</div>'
    display({"text/html": box, "text/plain": f"{head}\n{body}".rstrip()}, raw=True)
