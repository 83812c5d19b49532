"""Triton text compiles for every vendor, is readable, and checks bounds only where needed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import engine
from engine.ir.kernels.generated_kernel import GeneratedKernel
from engine.kernels.compile_kernel import compile_kernel
from engine.kernels.triton.printer import print_triton
from engine.lowering.driver import lower
from tests.engine.lowering.op_cases import CASES
from tests.engine.lowering.trace_aten import trace_to_aten
from tests.markers import needs_triton

F = nn.functional

SAMPLE_CASES = [
    "masked_softmax_layer_norm",
    "rotary",
    "cross_entropy",
    "integer_arithmetic",
    "arithmetic",
    "cat_and_pad",
    "long_ragged_rows",
    "float64_constants",
]


def kernels_of(function: Callable[..., Any], *args: torch.Tensor) -> tuple[GeneratedKernel, ...]:
    """The kernels of a function."""
    return lower(trace_to_aten(function, args), "cuda:90", print_triton).kernels


@needs_triton
@pytest.mark.parametrize("target", ["cuda:90", "hip:gfx942"])
@pytest.mark.parametrize("name", SAMPLE_CASES)
def test_compiles(name: str, target: str) -> None:
    """Kernels of all kinds compile for NVIDIA and AMD devices without having one."""
    case = CASES[name]
    for kernel in kernels_of(case.function, *case.args()):
        assert compile_kernel(kernel, target).error == ""


def test_no_bounds_where_blocks_fit() -> None:
    """Sizes that blocks divide need no masks; others do."""
    (fits,) = kernels_of(lambda x: x + 1, torch.randn(4096))
    (ragged,) = kernels_of(lambda x: x + 1, torch.randn(4097))
    assert "mask=" not in fits.text
    assert ragged.text.count("mask=at < 4097") == 2


def test_contiguous_access_is_one_variable() -> None:
    """However a contiguous tensor is reshaped, its index is the loop variable itself."""
    (kernel,) = kernels_of(
        lambda x: x.view(8, 2, 16).transpose(0, 1).transpose(0, 1).reshape(16, 16) + 1, torch.randn(16, 16)
    )
    assert "//" not in kernel.text
    assert "%" not in kernel.text


def test_rows_that_fit_stay_in_registers() -> None:
    """A softmax reads a row that fits once; over a longer row it loops twice.

    The first loop reduces, the second writes.
    """
    (short,) = kernels_of(lambda x: torch.softmax(x, -1), torch.randn(64, 8192))
    (long,) = kernels_of(lambda x: torch.softmax(x, -1), torch.randn(512, 40_000))
    assert "for " not in short.text
    assert short.text.count("tl.load") == 1
    assert long.text.count("for start in") == 2


def test_columns_are_read_together() -> None:
    """A sum over the first dimension has neighboring threads read neighboring columns."""
    (kernel,) = kernels_of(lambda x: x.sum(0), torch.randn(64, 4096))
    rows = next(a.value for a in kernel.args if a.name == "ROWS")
    assert isinstance(rows, int)
    assert rows >= 16


def test_values_are_named_after_their_nodes() -> None:
    """A line reads like the program it came from."""
    (kernel,) = kernels_of(lambda x, y: F.gelu(x * y), torch.randn(64), torch.randn(64))
    assert "    mul = " in kernel.text
    assert "    gelu = " in kernel.text
    assert kernel.name == "fused_mul_gelu"


def test_wide_indices_only_where_needed() -> None:
    """Positions beyond 2^31 are computed in 64 bits, all others in 32."""
    with torch.device("meta"):
        huge = torch.empty(1 << 16, 1 << 16, dtype=torch.int8)
    (kernel,) = kernels_of(lambda x: x + 1, huge)
    (small,) = kernels_of(lambda x: x + 1, torch.randn(64))
    assert "tl.program_id(0).to(tl.int64)" in kernel.text
    assert "int64" not in small.text


@pytest.mark.thorough
@needs_triton
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.float64])
def test_a_negative_zero_keeps_its_sign(dtype):
    """Triton makes every zero constant a positive one; 1 divided by it has the other sign."""
    x = torch.ones(4, dtype=dtype)

    def f(x):
        return 1 / torch.full((4,), -0.0, dtype=dtype) + x, 1 / torch.where(x > 0, -0.0, x)

    with engine.record() as session:
        engine.compile(f, backend="triton")(x)
    outcomes = {v.outcome for v in engine.verify(session).values() if v.where == "Triton's interpreter"}
    assert outcomes == {"equal"}
