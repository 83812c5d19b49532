"""The line that is shown while a cell compiles for long."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from notebook_ext import progress
from notebook_ext.progress import WidgetProgressLine, progress_text
from tests.notebook_ext.sample_sessions import head_session


@pytest.mark.parametrize(
    ("stage", "told"),
    [
        ("lowering 0/0", "Compiling Head.forward: lowering, 3 s"),
        ("compile 0/0", "Compiling Head.forward, 3 s"),
        ("verify", "Checking the cell, 3 s"),
        ("", "Running the cell, 3 s"),
        ("compare", "Running the same calls through torch.compile, 3 s"),
        (
            "tuning 2: 5 ways to compute aten:0/0:mm_1",
            "Compiling Head.forward: autotuning 2, measuring 5 candidates for mm_1 on the GPU, 3 s",
        ),
        (
            "tuning 2: 5 ways to compute aten:9/0:mm",
            "Compiling the cell: autotuning 2, measuring 5 candidates for mm on the GPU, 3 s",
        ),
    ],
)
def test_the_line_says_what_is_at_work(stage: str, told: str) -> None:
    """The progress line names the stage and the function at work.

    During autotuning it says how many kernels are measured and for which node.
    """
    assert progress_text(head_session(), stage, 3.0) == told


def test_the_line_is_one_widget_whose_click_cancels(monkeypatch: pytest.MonkeyPatch) -> None:
    """It has no child widgets: their views would be made after the line is gone."""
    shown: list[Any] = []
    handle = SimpleNamespace(update=lambda data, raw: shown.append(data))
    monkeypatch.setattr(progress, "display", lambda widget, display_id: shown.append(widget) or handle)
    monkeypatch.setattr(progress, "interrupt", lambda: shown.append("interrupted"))
    session = head_session()
    shell: Any = SimpleNamespace(kernel=SimpleNamespace(_supports_kernel_subshells=True))
    line = WidgetProgressLine(shell, session)
    line.set_text("Compiling, 1 s")
    line.set_text("Compiling, 2 s")
    (widget,) = shown
    assert (widget.text, widget.can_cancel) == ("Compiling, 2 s", True)
    assert "children" not in widget.keys
    widget._handle_custom_msg({}, [])
    line.close()
    assert session.is_cancelled
    assert shown[1:] == ["interrupted", {"text/plain": ""}]
