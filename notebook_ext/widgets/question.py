"""Question widget of a lesson: choices, and the answer after it is revealed."""

from __future__ import annotations

import anywidget
import traitlets

from notebook_ext.widgets.bundle_assets import STATIC


class QuestionWidget(anywidget.AnyWidget):
    """Radio buttons; ``chosen`` and ``answer`` are indices into the choices, -1 for none."""

    _esm = (STATIC / "question.js").read_text(encoding="utf-8")
    _css = (STATIC / "question.css").read_text(encoding="utf-8")
    question = traitlets.Unicode().tag(sync=True)
    choices = traitlets.List(traitlets.Unicode()).tag(sync=True)
    chosen = traitlets.Int(-1).tag(sync=True)
    answer = traitlets.Int(-1).tag(sync=True)

    def __repr__(self) -> str:
        return f"Question: {self.question} (choices can be clicked while the kernel runs)"
