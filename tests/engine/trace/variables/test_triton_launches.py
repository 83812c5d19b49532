"""Launches of the user's own Triton kernels in traced code."""

from __future__ import annotations

import os
import pathlib
import re
import subprocess
import sys

import pytest
import torch

import engine
from engine import session_jobs
from engine.editing.edit_kernels import editable_kernels
from tests.engine.trace.variables import triton_launch_functions

ROOT = pathlib.Path(__file__).parents[4]


@pytest.mark.thorough
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


@pytest.mark.thorough
def test_a_hand_written_kernel_is_shown_like_a_generated_one() -> None:
    """A launch is a node with its kernel's name and listings; operators around it fuse."""
    with engine.record() as session, pytest.raises(RuntimeError, match="active drivers"):  # no GPU launches it
        engine.compile(triton_launch_functions.calls_triton_op)(torch.ones(64), torch.ones(64))
    assert session_jobs.wait(session, 120)
    (compilation,) = session.compilations
    kernels = {k.name: k for k in compilation.kernels}
    assert {"add_kernel", "sin_kernel", "fused_cos_add"} <= kernels.keys()
    shown = kernels["add_kernel"]
    assert shown.fused_nodes == (f"aten:{compilation.id}:add_kernel",)
    assert "tl.load(x_ptr + at, mask=inside)" in shown.text
    assert {"x_ptr": "sin", "out_ptr": "empty_like", "BLOCK": "16"}.items() <= (shown.launch_args or {}).items()
    (target,) = shown.targets
    assert {"ttir", "ptx"} <= {listing.stage for listing in target.listings}, target.error
    assert shown not in editable_kernels(compilation)
    assert "triton_kernels.add_kernel" in str(session.graph)
    assert "hand-written Triton kernel" in str(session.lowering)


def test_triton_op_with_a_kernel_for_the_device_stays_one_node() -> None:
    """An operator with a kernel of its own for the CPU runs that kernel, and launches nothing."""
    x = torch.randn(8)
    with engine.record() as session:
        got = engine.compile(triton_launch_functions.calls_doubled, backend="aot_eager")(x)
    torch.testing.assert_close(got, triton_launch_functions.calls_doubled(x))
    assert "triton_launches.doubled(sin)" in str(session.graph)
    with engine.record() as session:
        torch.testing.assert_close(engine.compile(triton_launch_functions.calls_doubled)(x), got)
    lowering = session.compilations[0].lowering
    assert lowering is not None
    (extern,) = (e for e in lowering.externs if "doubled" in e.op)  # no kernel is shown, and this says why
    assert extern.reason == "It is a triton_op with code of its own for cpu, which runs: no Triton kernel is launched."
    assert "@triton.jit\ndef " in extern.text
    assert "tl.store(" in extern.text


def test_equal_launches_share_an_operator() -> None:
    """A recompile defines no new operator, and equal names of two kernels define two."""
    x = torch.ones(16)
    names = []
    for function in (triton_launch_functions.adds, triton_launch_functions.adds, triton_launch_functions.adds_by_meta):
        engine.reset()
        with engine.record() as session, pytest.raises(RuntimeError, match="active drivers"):
            engine.compile(function, backend="aot_eager")(x, x)
        names.append(re.findall(r"triton_kernels\.[\w.]+", str(session.graph)))
    assert names[0] == names[1] != names[2], names
