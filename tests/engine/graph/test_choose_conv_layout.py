"""Convolutions on a GPU run in channels last; results and gradients have eager's strides."""

from __future__ import annotations

import copy
from collections.abc import Iterator

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import engine
from engine.graph.passes import choose_conv_layout

Tensor = torch.Tensor


class Shuffled(nn.Module):
    """Convolutions, a shuffle of channels, and operators that need eager's layout."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(3, 16, 3, padding=1)
        self.second = nn.Conv2d(8, 8, 3, padding=1, groups=8)

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        y = F.max_pool2d(self.first(x).relu(), 2)
        n, c, h, w = y.shape
        y = y.view(n, 2, c // 2, h, w).transpose(1, 2).reshape(n, c, h, w)
        a, b = y.chunk(2, 1)
        y = torch.cat([a, self.second(b)], 1)
        return y, F.dropout(y, 0.5), y.flatten(1), y.sort(1)[0]


@pytest.fixture
def for_a_gpu(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[int]]:
    """Choose layouts as on a GPU; the list holds the number of copies in each graph."""
    counts: list[int] = []
    rewrite = choose_conv_layout._Rewriter.run

    def run(self: choose_conv_layout._Rewriter) -> torch.fx.GraphModule:
        made = rewrite(self)
        counts.append(sum(n.name.endswith("_laid_out") for n in made.graph.nodes))
        return made

    monkeypatch.setattr(choose_conv_layout, "gains_from_channels_last", lambda graph, trains: True)
    monkeypatch.setattr(choose_conv_layout._Rewriter, "run", run)
    monkeypatch.setattr(engine.config, "disk_cache", False)
    monkeypatch.setattr(engine.config, "cpu_kernels", False)
    yield counts
    engine.reset()


@pytest.mark.parametrize("autocast", [False, True])
def test_values_and_strides_are_eagers(for_a_gpu: list[int], autocast: bool) -> None:
    """Results, gradients, their strides and random numbers are eager's, also under autocast."""
    plain = Shuffled()
    fast = copy.deepcopy(plain)
    compiled, found = engine.compile(fast), []
    for model, call in ((plain, plain), (fast, compiled)):
        torch.manual_seed(0)
        x = torch.linspace(-1, 1, 2 * 3 * 8 * 8).view(2, 3, 8, 8).requires_grad_()
        with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
            results = call(x)
        sum(r.square().sum() for r in results).backward()
        found.append([*results, x.grad, *(p.grad for p in model.parameters())])
    assert for_a_gpu
    assert for_a_gpu[0] > 5
    near = {"rtol": 3e-2, "atol": 3e-1} if autocast else {"rtol": 1e-4, "atol": 1e-4}
    for wanted, given in zip(*found, strict=True):
        torch.testing.assert_close(given, wanted, **near, check_stride=True)


def test_layouts_follow_torchs_estimate() -> None:
    """Grouped convolutions and those with few channels train in eager's layout."""
    kind = choose_conv_layout._kind_of_convolution
    assert kind(torch.Size((64, 2, 3, 3)), 32) == "grouped"
    assert kind(torch.Size((64, 1, 3, 3)), 64) == "few channels"
    assert kind(torch.Size((64, 256, 3, 3)), 1) == "narrowing"
    assert kind(torch.Size((64, 256, 1, 1)), 1) == "other"


def test_activations_carry_the_layout(for_a_gpu: list[int]) -> None:
    """Only the input and the returned gradient are copied, not what activations read."""
    weight = torch.linspace(-1, 1, 4).view(2, 2, 1, 1)

    def f(x: Tensor) -> Tensor:
        for activation in (F.hardswish, F.elu):
            x = activation(F.conv2d(x, weight))
        return x.sum()

    x = torch.linspace(-4, 4, 64).view(2, 2, 4, 4).requires_grad_()
    expected = torch.autograd.grad(f(x), x)
    torch.testing.assert_close(torch.autograd.grad(engine.compile(f)(x), x), expected, check_stride=True)
    assert for_a_gpu == [2]
