"""Sums of very many numbers are as exact as those of eager."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from engine.ir.kernels.host_vectors import VectorUnit
from tests.engine.kernels.cpu.test_cpu_kernels import UNITS, run_on_cpu

SUMS: dict[str, tuple[Callable[[torch.Tensor], torch.Tensor], tuple[int, ...]]] = {
    "all": (lambda x: x.relu().sum(), (4_000_000,)),
    "rows": (lambda x: x.relu().mean(1), (2, 2_000_000)),
    "columns in strips": (lambda x: x.relu().sum(0), (100_000, 40)),
    "half columns": (lambda x: x.bfloat16().sum(0, dtype=torch.float32), (100_000, 40)),
    "both sides": (lambda x: x.relu().sum((0, 2)), (400, 4, 2500)),
}


@pytest.mark.parametrize("unit", UNITS, ids=lambda u: u.name)
@pytest.mark.parametrize("name", SUMS)
def test_symbolic_sums_do_not_drift(name: str, unit: VectorUnit) -> None:
    """Equal terms round in one direction, which float32 accumulators would add up."""
    function, shape = SUMS[name]
    x = torch.full(shape, 0.1)
    _, (found,) = run_on_cpu(function, (x,), unit, is_dynamic=True)
    torch.testing.assert_close(found, function(x), rtol=3e-6, atol=0)


@pytest.mark.parametrize("shape", [(1000, 4096), (8, 900, 100), (4, 300, 700)], ids=str)
def test_sums_of_columns_are_as_exact_as_in_eager(shape: tuple[int, ...]) -> None:
    """Columns of some hundred positive numbers have no error of one long chain."""
    x = torch.rand(shape, generator=torch.Generator().manual_seed(0))
    dim = len(shape) - 2

    def reduce(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return x.sum(dim), x.var(dim), x.mean(dim)

    _, found = run_on_cpu(reduce, (x,), UNITS[0])
    for own, exact in zip(found, reduce(x.double()), strict=True):
        torch.testing.assert_close(own.double(), exact, rtol=1e-6, atol=0)


@pytest.mark.parametrize("is_dynamic", [False, True])
def test_infinite_terms_stay_infinite(is_dynamic: bool) -> None:
    """Infinities, NaN and overflow of float32 reach the result."""
    x = torch.ones(4, 3000)
    x[0, 5], x[1, 6], x[2] = torch.inf, torch.nan, 3e38
    _, (found,) = run_on_cpu(lambda x: x.square().sqrt().sum(1), (x,), UNITS[0], is_dynamic=is_dynamic)
    assert found.tolist()[0] == found.tolist()[2] == torch.inf
    assert found.isnan().tolist() == [False, True, False, False]
    assert found[3] == 3000
