"""Equal calls of an operator share one decomposition."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F

from engine.lowering.passes import decompose as decompose_pass
from tests.engine.lowering.trace_aten import trace_to_aten


def losses(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """Two equal calls, and three that differ in an argument, in the sizes or in the strides."""
    equal = F.huber_loss(x, y) + F.huber_loss(y, x)
    return equal + F.huber_loss(x, y, delta=2.0) + F.huber_loss(x[0], y[0]) + F.huber_loss(x.t(), y.t())


def test_equal_calls_are_decomposed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A decomposition is traced once for equal arguments and metadata; all values stay."""
    x, y = torch.randn(4, 4), torch.randn(4, 4)
    graph = trace_to_aten(losses, (x, y))
    traced: list[Any] = []
    trace = decompose_pass._trace_decomposition

    def trace_and_note(node: torch.fx.Node, is_cpu: bool) -> torch.fx.GraphModule | None:
        if "huber_loss" in str(node.target):
            traced.append(node.name)
        return trace(node, is_cpu)

    monkeypatch.setattr(decompose_pass, "_trace_decomposition", trace_and_note)
    module = decompose_pass.decompose(graph)
    assert len(traced) == 4
    torch.testing.assert_close(module(x, y)[0], losses(x, y))
