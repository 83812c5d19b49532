"""Launches of the user's own Triton kernels in traced code."""

from __future__ import annotations

import os
import pathlib
import subprocess
import sys

import pytest
import torch

import engine
from tests.engine.trace.variables import triton_launch_functions

ROOT = pathlib.Path(__file__).parents[4]


def test_launches_match_eager_in_interpreter() -> None:
    """Under Triton's interpreter, kernel launches are captured and match eager.

    There is no graph break, whatever the grid is made of.
    """
    done = subprocess.run(
        [sys.executable, "-m", "tests.engine.trace.variables.triton_launch_functions"],
        cwd=ROOT,
        env={**os.environ, "TRITON_INTERPRET": "1", "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.stdout.strip() == "equal", done.stderr


def test_a_launch_raises_what_eager_raises() -> None:
    """Without a GPU for the kernel, the compiled function raises eager's exact exception."""
    x = torch.ones(4)
    with pytest.raises(Exception) as eager:  # noqa: PT011
        triton_launch_functions.adds(x, x)
    with pytest.raises(type(eager.value)) as compiled:
        engine.compile(triton_launch_functions.adds, backend="eager")(x, x)
    assert str(compiled.value) == str(eager.value)
