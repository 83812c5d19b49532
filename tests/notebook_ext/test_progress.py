"""The line that is shown while a cell compiles for long."""

from __future__ import annotations

import pytest

from notebook_ext.progress import progress_text
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
