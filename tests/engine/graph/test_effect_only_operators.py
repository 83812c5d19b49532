"""Test that operators which only have an effect run once per call."""

from __future__ import annotations

import ctypes

import pytest
import torch

import engine


@pytest.mark.parametrize("backend", ["eager", "aot_eager", "triton"])
@pytest.mark.parametrize("needs_grad", [False, True])
def test_printing_operators_print_once(backend: str, needs_grad: bool, capfd: pytest.CaptureFixture[str]) -> None:
    """``aten._print`` writes once for each call, the first one included."""

    def step(x: torch.Tensor) -> torch.Tensor:
        torch.ops.aten._print("before")
        y = x + 1
        torch.ops.aten._print("after")
        return y * 2

    compiled = engine.compile(step, backend=backend)
    for _ in range(2):
        compiled(torch.ones(2, requires_grad=needs_grad))
        ctypes.CDLL(None).fflush(None)  # torch 2.15 leaves the text in the buffer of C's stdout
        assert capfd.readouterr().out.split() == ["before", "after"]


@pytest.mark.parametrize("backend", ["eager", "aot_eager", "triton"])
def test_operators_of_the_user_run_once(backend: str) -> None:
    """A user's operator without tensors and results runs once for each call."""
    calls: list[int] = []
    library = torch.library.Library("engine_effect_test", "FRAGMENT")
    library.define(f"note_{backend}(str text, int number) -> ()")
    library.impl(f"note_{backend}", lambda text, number: calls.append(number), "CompositeExplicitAutograd")
    note = getattr(torch.ops.engine_effect_test, f"note_{backend}")

    def step(x: torch.Tensor) -> torch.Tensor:
        note("one", 1)
        return x + 1

    compiled = engine.compile(step, backend=backend)
    for _ in range(2):
        compiled(torch.ones(2))
    assert calls == [1, 1]
