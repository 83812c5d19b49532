"""Calls with fake tensors return eager's fake results and say why nothing was compiled."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

import engine
from engine.torch_private.fake_tensors import FakeTensor, FakeTensorMode


def fn(x: torch.Tensor) -> torch.Tensor:
    return (x.sin() @ x.t()).sum(0)


def reasons(session: Any) -> set[str]:
    return {b.kind for c in session.compilations if c.trace is not None for b in c.trace.breaks}


@pytest.mark.parametrize("backend", ["aot_eager", "triton"])
def test_fake_arguments(backend: str) -> None:
    """One reason for all such calls; real tensors in between are compiled."""
    engine.reset()
    fake = FakeTensorMode().from_tensor(torch.randn(3, 4))
    real = torch.randn(3, 4)
    with engine.record() as session:
        run = engine.compile(fn, backend=backend)
        made = [run(fake), run(real), run(fake)]
    assert [type(m) for m in made] == [FakeTensor, torch.Tensor, FakeTensor]
    assert made[0].shape == (3,)
    assert torch.allclose(made[1], fn(real))
    assert reasons(session) == {"fake-tensor"}
    assert [c.aot.mode for c in session.compilations if c.aot is not None] == ["inference"]


def test_fake_parameters_train() -> None:
    """A module made under a fake mode gets fake gradients inside and outside of the mode."""
    mode = FakeTensorMode()
    with mode:
        net, x = nn.Sequential(nn.Linear(4, 5), nn.ReLU()), torch.randn(2, 4)
    engine.reset()
    with engine.record() as session:
        run = engine.compile(net, backend="aot_eager")
        outside = run(x)
        with mode:
            inside = run(x)
            (outside + inside).sum().backward()
    assert isinstance(net[0].weight.grad, FakeTensor)
    assert inside.shape == outside.shape == (2, 5)
    assert reasons(session) == {"fake-tensor"}


def test_compiled_code_under_a_fake_mode() -> None:
    """Code compiled for real tensors does not serve a mode that makes fake ones of them."""
    engine.reset()
    run = engine.compile(fn, backend="triton")
    x = torch.randn(3, 4)
    assert type(run(x)) is torch.Tensor
    with FakeTensorMode(allow_non_fake_inputs=True):
        assert type(run(x)) is FakeTensor
    assert torch.allclose(run(x), fn(x))
