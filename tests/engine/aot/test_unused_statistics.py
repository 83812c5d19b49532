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
