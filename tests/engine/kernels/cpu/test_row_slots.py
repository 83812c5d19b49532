"""Values of a row that are costly are computed in one pass, and read in the next."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import nn

from engine.ir.kernels.host_vectors import VectorUnit
from tests.engine.kernels.cpu.test_cpu_kernels import UNITS, assert_same, run_on_cpu

F = nn.functional
FUNCTIONS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "softmax": lambda x: torch.softmax(x * 2, -1),
    "softmax of columns": lambda x: torch.softmax(x * 2, 0),
    "norm of an activation": lambda x: F.layer_norm(F.silu(x) * 2, x.shape[-1:]),
    "masked": lambda x: torch.softmax(x.masked_fill(x > 1, -10.0), -1) * x.exp(),
    "half": lambda x: F.rms_norm(torch.tanh(x.half()), x.shape[-1:]),
    "doubles": lambda x: torch.softmax(x.double() * 2, -1),
    "scan": lambda x: torch.softmax(x.exp().cumsum(-1), -1),
}


@pytest.mark.combinations
@pytest.mark.parametrize("unit", UNITS, ids=lambda u: u.name)
@pytest.mark.parametrize("shape", [(3, 37), (70, 130)], ids=str)
@pytest.mark.thorough
@pytest.mark.parametrize("name", FUNCTIONS)
def test_rows_stored_for_a_later_pass(name: str, shape: tuple[int, int], unit: VectorUnit) -> None:
    """Results are eager's, with whole vectors and with a rest, along the row and across."""
    torch.manual_seed(0)
    x = torch.randn(shape)
    for is_dynamic in (False, True):
        _, found = run_on_cpu(FUNCTIONS[name], (x,), unit, is_dynamic=is_dynamic)
        assert_same(found, FUNCTIONS[name](x))


@pytest.mark.thorough
@pytest.mark.parametrize(("columns", "is_stored"), [(1024, True), (1 << 15, False)])
def test_costly_values_are_computed_once(columns: int, is_stored: bool) -> None:
    """A row that fits in the cache is stored; a longer one is computed in each pass."""
    x = torch.randn(128, columns)
    program, _ = run_on_cpu(lambda x: F.layer_norm(torch.exp(x), x.shape[-1:]), (x,), UNITS[0])
    assert any("%row.slot" in kernel.text for kernel in program.kernels) == is_stored
