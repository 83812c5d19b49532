"""Random numbers come from ATen with eager's seeds, or from kernels on request."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import engine
from engine.ir.kernels.lowered_program import AtenCall
from engine.kernels.triton.printer import print_triton
from engine.lowering.driver import lower
from engine.lowering.philox_ops import random_bits, random_seeds, random_uniform
from engine.runtime.verify.kernels import verify_kernels
from tests.engine.lowering.trace_aten import trace_to_aten
from tests.markers import needs_triton

pytestmark = needs_triton
F = torch.nn.functional


def random_ops(x: Any) -> Any:
    """Every kind of random number that kernels draw."""
    return (
        (F.dropout(torch.relu(x), 0.25), torch.randn_like(x) + 1, torch.rand(4, 3), torch.randint(2, 10, (5,))),
        (
            torch.bernoulli(x.sigmoid()),
            torch.rand_like(x.t()),
            F.dropout(x.bfloat16().t(), 0.5).sum(),
            torch.normal(x, 2.0),
        ),
        (torch.rand(()), torch.randn(3, 1, 2), torch.randint_like(x, 7)),
    )


@pytest.mark.thorough
def test_in_kernel_numbers_are_philox() -> None:
    """Philox gives the published answers for keys of zeros and of ones, and seeds differ."""
    seeds = torch.tensor([0, -1])
    assert random_bits(seeds, 0, [1]).item() == 0x6627E8D5
    assert not torch.equal(random_bits(seeds, 0, [9]), random_bits(seeds, 1, [9]))
    numbers = random_uniform(seeds, 1, [100_000])
    assert 0 <= numbers.min() < numbers.max() < 1
    assert abs(numbers.mean() - 0.5) < 0.005


def test_seeds_follow_the_generator() -> None:
    """The same seed gives the same numbers, the next call others."""
    torch.manual_seed(3)
    first, second = (random_seeds(2, device=torch.device("cpu")) for _ in range(2))
    torch.manual_seed(3)
    assert torch.equal(first, random_seeds(2, device=torch.device("cpu")))
    assert not torch.equal(first, second)


@pytest.mark.thorough
def test_kernels_draw_what_the_operators_do() -> None:
    """Kernels that generate random numbers match the operators; only the seeds stay in ATen."""
    args = (torch.randn(8, 16),)
    graph = trace_to_aten(random_ops, args)
    program = lower(graph, "cuda:90", print_triton, fused_random=True)
    assert [s.target for s in program.steps if isinstance(s, AtenCall)] == [random_seeds]
    assert program.record.lowered == program.record.total - 1
    assert {r.outcome for r in verify_kernels(program, graph, args).values()} <= {"equal", "close"}


def test_generators_of_eager_are_the_default() -> None:
    """Random operators fall back to ATen by default, and the hint names the option to set."""
    program = lower(trace_to_aten(random_ops, (torch.randn(8, 16),)), "cuda:90", print_triton)
    hints = {e.hint for e in program.record.externs if e.op.startswith("aten.")}
    assert any('options={"fused_random": True}' in hint for hint in hints)
    assert not any("tl.rand" in k.text for k in program.kernels)


def test_results_without_a_gpu_are_those_of_eager() -> None:
    """The kernels draw, and the results are still those of the generator that eager uses."""
    x = torch.randn(4, 8)

    def dropped(x: torch.Tensor) -> torch.Tensor:
        return F.dropout(x * 2, 0.5)

    engine.reset()
    with engine.record() as session:
        torch.manual_seed(5)
        found = engine.compile(dropped, options={"fused_random": True})(x)
    torch.manual_seed(5)
    assert torch.equal(found, dropped(x))
    assert any("tl.rand(" in k.text for c in session.compilations for k in c.kernels)


@pytest.mark.thorough
@pytest.mark.parametrize("target", ["cuda:90", "hip:gfx942"])
def test_drawing_kernels_compile(target: str) -> None:
    """For GPUs of both makers."""
    from engine.kernels.compile_kernel import compile_kernel

    program = lower(
        trace_to_aten(lambda x: F.dropout(x, 0.1), (torch.randn(4096),)), target, print_triton, fused_random=True
    )
    (kernel,) = program.kernels
    assert not compile_kernel(kernel, target).error
