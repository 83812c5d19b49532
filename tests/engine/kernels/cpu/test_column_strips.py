"""Reductions of columns read each row of a strip in one run, with accumulators in memory."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch

import engine
from engine.ir.kernels.host_vectors import VectorUnit
from engine.kernels.cpu.loop_plan import STRIP
from tests.engine.kernels.cpu.test_cpu_kernels import UNITS, assert_same, run_on_cpu

F = torch.nn.functional
gelu_backward = torch.ops.aten.gelu_backward


def _activation_and_bias(x: torch.Tensor, w: torch.Tensor) -> Any:
    gradient = gelu_backward(x, x * w)
    return gradient, gradient.sum(0), gradient.amax(0)


FUNCTIONS: dict[str, Callable[[torch.Tensor, torch.Tensor], Any]] = {
    "gradients of an activation and its bias": _activation_and_bias,
    "gradients of a norm's weights": lambda x, w: ((x * (x - w) * x[:, :1].exp()).sum(0), x.sum(0)),
    "column results": lambda x, w: (x.mean(0) * w + torch.rsqrt(x.square().mean(0) + 1), w + 1),
    "half": lambda x, w: ((x.bfloat16() * 2).sum(0), x.half().relu().amax(0)),
    "integers": lambda x, w: ((x * 9).long().sum(0), (x > 0).sum(0), (x > 1).any(0), (x * 9).int().amin(0)),
    "doubles": lambda x, w: (x.double() * w).sum(0),
    "indices": lambda x, w: (x[(x[:, 0] * 3).long().clamp(0, x.shape[0] - 1)] * w).sum(0),
}


@pytest.mark.combinations
@pytest.mark.parametrize("unit", UNITS, ids=lambda u: u.name)
@pytest.mark.parametrize("shape", [(1000, 37), (18, STRIP + 75)], ids=str)
@pytest.mark.thorough
@pytest.mark.parametrize("name", FUNCTIONS)
def test_columns_are_right(name: str, shape: tuple[int, int], unit: VectorUnit) -> None:
    """Results are eager's for whole vectors, rests and several strips, and for symbolic sizes."""
    torch.manual_seed(0)
    args = (torch.randn(shape), torch.randn(shape[1]))
    for is_dynamic in (False, True):
        _, found = run_on_cpu(FUNCTIONS[name], args, unit, is_dynamic=is_dynamic)
        assert_same(found, FUNCTIONS[name](*args))


@pytest.mark.parametrize("unit", UNITS, ids=lambda u: u.name)
def test_special_values_stay_in_their_columns(unit: VectorUnit) -> None:
    """NaN and infinities reach the results of their own columns only."""
    torch.manual_seed(0)
    x = torch.randn(300, 150)
    for column, value in ((3, math.nan), (5, math.inf), (7, math.inf), (149, -math.inf)):
        x[column % 64, column] = value
    x[3, 5] = -math.inf

    def function(x: torch.Tensor) -> Any:
        return x.sum(0), x.amax(0), x.amin(0), x.relu().sum(0)

    _, found = run_on_cpu(function, (x,), unit)
    assert_same(found, function(x))


def test_results_are_stored_into_inputs_once() -> None:
    """A running statistic is read and written once for each column, not in each row."""
    x, mean = torch.randn(300, 150), torch.randn(150)

    def update(x: torch.Tensor, mean: torch.Tensor) -> torch.Tensor:
        mean.mul_(0.5).add_((x * mean).sum(0))
        return x.sum(0)

    own, theirs = mean.clone(), mean.clone()
    assert_same((engine.compile(update)(x, own), own), (update(x, theirs), theirs))


@pytest.mark.parametrize(
    ("shape", "is_in_strips"), [((64, 1024), True), ((32, 512), False), ((8, 8192), False), ((4096, 16), False)]
)
def test_many_rows_of_many_columns_are_read_in_strips(shape: tuple[int, int], is_in_strips: bool) -> None:
    """Few elements, few rows, and rows of one iteration are reduced in registers."""
    program, _ = run_on_cpu(lambda x: (x * 2).sum(0), (torch.randn(shape),), UNITS[0])
    assert any("%strip.slot" in kernel.text for kernel in program.kernels) == is_in_strips
