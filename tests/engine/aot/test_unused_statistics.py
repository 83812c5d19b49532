"""The backward of batch norm in training reads no running statistics."""

from __future__ import annotations

import torch
from torch import nn

import engine


def test_new_statistics_are_not_saved_for_backward() -> None:
    """The graph of the backward has no input for them, and gradients equal eager's."""
    model, x = nn.BatchNorm2d(4), torch.randn(2, 4, 3, 3, requires_grad=True)
    other = nn.BatchNorm2d(4)
    with engine.record() as session:
        engine.compile(model, backend="aot_eager")(x).pow(2).sum().backward()
    found, x.grad = x.grad, None
    other(x).pow(2).sum().backward()
    torch.testing.assert_close(found, x.grad)
    torch.testing.assert_close(model.running_var, other.running_var)
    backward = next(g for c in session.compilations for g in c.graphs if g.title == "backward graph")
    assert any("batch_norm_backward" in str(n.target) for n in backward.nodes)
    given = [n.name for n in backward.nodes if n.op == "placeholder"]
    assert not any("getitem_3" in name or "getitem_4" in name or "running" in name for name in given)


def test_statistics_that_kernels_write_are_not_viewed() -> None:
    """A call whose kernels update a buffer in place returns no view of it to autograd."""

    class Tracking(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.ones(4096))
            self.register_buffer("mean", torch.zeros(4096))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.mean.mul_(0.9).add_(x.detach(), alpha=0.1)
            return (x * self.weight).sin()

    model, other, x = Tracking(), Tracking(), torch.randn(4096)
    call = engine.compile(model)
    for step in (call, other, other):
        step(x).sum().backward()
    with torch.profiler.profile() as seen:
        call(x).sum().backward()
    assert "aten::view_as" not in {e.name for e in seen.events()}
    torch.testing.assert_close(model.mean, other.mean)
    assert model.mean._version == other.mean._version
    torch.testing.assert_close(model.weight.grad, other.weight.grad)
