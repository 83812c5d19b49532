"""Tests of activation checkpoints whose function has side effects.

Eager runs the function again in the backward, and so must compiled code.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

import engine


class Normed(nn.Module):
    """Checkpoint a batch normalization that updates its statistics, and count calls."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.norm = nn.BatchNorm1d(4)
        self.count = 0

    def part(self, x: torch.Tensor) -> torch.Tensor:
        """What is checkpointed."""
        self.count += 1
        return self.norm(self.linear(x).relu()).sin()  # type: ignore[no-any-return]

    def forward(self, x: torch.Tensor) -> Any:
        return checkpoint(self.part, x, use_reentrant=False) * 2


def _step(model: Normed, call: Callable[..., Any], *, learns: bool) -> list[Any]:
    torch.manual_seed(1)
    x = torch.randn(3, 4, requires_grad=learns)
    with torch.set_grad_enabled(learns):
        out = call(x)
    if learns:
        out.sum().backward()
    return [out.detach(), model.count, *(p.grad for p in model.parameters()), *(b.clone() for b in model.buffers())]


def _same(got: list[Any], want: list[Any]) -> None:
    for mine, its in zip(got, want, strict=True):
        if isinstance(its, torch.Tensor):
            torch.testing.assert_close(mine, its)
        else:
            assert mine == its


@pytest.mark.parametrize("backend", ["eager", "aot_eager", "triton"])
def test_statistics_and_counts_are_as_eager_leaves_them(backend: str) -> None:
    """Checkpoint side effects happen twice per training step, as in eager.

    The record has the reason for leaving the checkpoint to Python.
    """
    torch.manual_seed(0)
    plain = Normed()
    other = Normed()
    other.load_state_dict(plain.state_dict())
    want = _step(plain, plain, learns=True)
    with engine.record() as session:
        got = _step(other, engine.compile(other, backend=backend), learns=True)
    _same(got, want)
    assert got[1] == 2
    reasons = [b.context for c in session.compilations if c.trace is not None for b in c.trace.breaks]
    assert any("checkpointed function" in r for r in reasons)


def test_without_gradients_the_checkpoint_is_captured() -> None:
    """The function runs once then: one graph, and the same effects."""
    torch.manual_seed(0)
    plain = Normed().eval()
    other = Normed().eval()
    other.load_state_dict(plain.state_dict())
    want = _step(plain, plain, learns=False)
    with engine.expect(graphs=1, breaks=0):
        got = _step(other, engine.compile(other, backend="eager"), learns=False)
    _same(got, want)
