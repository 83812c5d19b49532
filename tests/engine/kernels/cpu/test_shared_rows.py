"""Costly values that all rows share are computed once, before the loops over rows."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from engine.ir.kernels.host_vectors import VectorUnit
from tests.engine.kernels.cpu.test_cpu_kernels import UNITS, assert_same, run_on_cpu

F = torch.nn.functional
FUNCTIONS: dict[str, Callable[[torch.Tensor, torch.Tensor], Any]] = {
    "scale of a channel": lambda x, w: x * torch.rsqrt(w * w + 1) / w.exp(),
    "sinusoids": lambda x, w: (x[:, :1] * torch.exp(torch.arange(x.shape[1]) * -0.1), torch.sin(x * w.cos())),
    "batch norm, channels last": lambda x, w: F.batch_norm(
        x[None, :, None].permute(0, 3, 1, 2).contiguous(memory_format=torch.channels_last), w, w.abs()
    ),
    "reduced rows": lambda x, w: (torch.softmax(x * w.tanh(), -1), (x + w.exp()).sum(0), (x * w.sin()).amax(1)),
    "running sums": lambda x, w: (x * w.exp()).cumsum(1),
    "half": lambda x, w: x.half() * w.half().exp(),
    "quotients": lambda x, w: (x * 9).long() // ((w * 9).long().abs() + 1),
}


@pytest.mark.parametrize("unit", UNITS, ids=lambda u: u.name)
@pytest.mark.parametrize("shape", [(40, 37), (12, 128)], ids=str)
@pytest.mark.parametrize("name", FUNCTIONS)
def test_shared_values_are_right(name: str, shape: tuple[int, int], unit: VectorUnit) -> None:
    """Results are eager's for whole vectors and with a rest, and for symbolic sizes."""
    torch.manual_seed(0)
    args = (torch.randn(shape), torch.randn(shape[1]))
    for is_dynamic in (False, True):
        _, found = run_on_cpu(FUNCTIONS[name], args, unit, is_dynamic=is_dynamic)
        assert_same(found, FUNCTIONS[name](*args))


@pytest.mark.parametrize(("rows", "is_shared"), [(100, True), (2, False)])
def test_many_rows_share_a_costly_value(rows: int, is_shared: bool) -> None:
    """The exponential stands before the loop over rows, unless the rows are few."""
    args = (torch.randn(rows, 3, 64), torch.randn(64))
    program, _ = run_on_cpu(lambda x, w: x * w.exp(), args, UNITS[0])
    (kernel,) = program.kernels
    assert ("%shared.slot" in kernel.text) == is_shared
