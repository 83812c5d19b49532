"""A kernel that reduces rows also adds each to column sums, as gradients of a norm."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch

from engine.ir.kernels.host_vectors import VectorUnit
from tests.engine.kernels.cpu.test_cpu_kernels import UNITS, assert_same, run_on_cpu


def _norm_backward(x: torch.Tensor, w: torch.Tensor) -> Any:
    scale = torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-6)
    return x * scale * w, (x * scale).flatten(0, -2).mean(0)


def _columns_of_results(x: torch.Tensor, w: torch.Tensor) -> Any:
    rows = tuple(range(x.dim() - 1))
    probability = (x + w).exp() / (x + w).exp().sum(-1, keepdim=True)
    return probability.mean(rows), (probability * x).mean(rows, keepdim=True)


FUNCTIONS: dict[str, Callable[[torch.Tensor, torch.Tensor], Any]] = {
    "gradients of a norm": _norm_backward,
    "column sums of what rows give": _columns_of_results,
    "doubles": lambda x, w: _norm_backward(x.double(), w.double()),
    "half": lambda x, w: (x.half().amax(-1), (x.half() * 2).float().flatten(0, -2).mean(0)),
    "other reductions": lambda x, w: (x - x.amax(-1, keepdim=True), x.amax(0), (x > 0).sum(0), x.prod(0)),
}


@pytest.mark.parametrize("unit", UNITS, ids=lambda u: u.name)
@pytest.mark.parametrize("shape", [(512, 75), (1009, 70), (4, 7, 49, 64), (40, 33, 65)], ids=str)
@pytest.mark.thorough
@pytest.mark.parametrize("name", FUNCTIONS)
def test_sums_of_columns_are_right(name: str, shape: tuple[int, ...], unit: VectorUnit) -> None:
    """Results are eager's for whole vectors and rests, one or several dimensions, and primes."""
    torch.manual_seed(0)
    args = (torch.randn(shape) / 8, torch.randn(shape[-1]))
    _, found = run_on_cpu(FUNCTIONS[name], args, unit)
    assert_same(found, FUNCTIONS[name](*args))


@pytest.mark.parametrize("unit", UNITS, ids=lambda u: u.name)
def test_special_values_stay_in_their_rows_and_columns(unit: VectorUnit) -> None:
    """NaN and infinities reach the sums of the columns that eager's reach."""
    torch.manual_seed(0)
    args = (torch.randn(320, 130), torch.randn(130))
    for row, column, value in ((3, 5, math.nan), (200, 7, math.inf), (319, 129, -math.inf)):
        args[0][row, column] = value
    for function in (_norm_backward, _columns_of_results):
        _, found = run_on_cpu(function, args, unit)
        assert_same(found, function(*args))


@pytest.mark.parametrize(
    ("shape", "parts"),
    [((512, 128), (16, 128)), ((8, 256, 64), (8, 2, 64)), ((6, 7, 49, 64), (6, 7, 1, 64)), ((1009, 70), None)],
)
def test_one_kernel_reads_the_rows(shape: tuple[int, ...], parts: tuple[int, ...] | None) -> None:
    """It stores no row for the sum, and threads share its parts; a prime number has no parts."""
    program, _ = run_on_cpu(_norm_backward, (torch.randn(shape), torch.randn(shape[-1])), UNITS[0])
    readers = [k for k in program.kernels if any(a.buffer == program.inputs[0] for a in k.args)]
    partial = [b.shape for b in program.buffers.values() if b.name.endswith("_parts") and len(readers) == 1]
    assert partial == [parts] * (parts is not None)
    if parts is not None:
        assert readers[0].grid == (math.prod(parts[:-1]), 1)
        assert readers[0].args[-1].value > 0


def test_a_scatter_whose_iterations_meet_is_not_shared() -> None:
    """Rows that add to one element each run on one thread."""
    program, _ = run_on_cpu(
        lambda x, i: torch.zeros(50, 64).index_add(0, i, x),
        (torch.randn(300, 64), torch.randint(0, 50, (300,))),
        UNITS[0],
    )
    assert all(k.grid[0] == 64 for k in program.kernels if any(a.initial_value is not None for a in k.args))
