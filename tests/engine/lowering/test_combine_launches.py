"""Launches of equal computations on different tensors are combined."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from engine.ir.kernels.lowered_program import AtenCall, LoweredProgram
from engine.kernels.compile_kernel import compile_kernel
from engine.kernels.triton.printer import print_triton
from engine.lowering import combine_launches
from engine.lowering.driver import lower
from engine.lowering.memory.live_memory import live_memory
from tests.engine.lowering.op_cases import CASES
from tests.engine.lowering.trace_aten import trace_to_aten
from tests.markers import needs_triton

SHAPES = ((64, 32), (64,), (5, 7, 3), (1000,))


def program(function: Any, *args: torch.Tensor) -> LoweredProgram:
    """Lower a function for a GPU."""
    return lower(trace_to_aten(function, args), "cuda:90", print_triton)


def updates(*given: torch.Tensor) -> list[torch.Tensor]:
    """Update each tensor of the first half by one of the second."""
    half = len(given) // 2
    return [w - 0.1 * g for w, g in zip(given[:half], given[half:], strict=True)]


def tensors() -> list[torch.Tensor]:
    """Weights and gradients."""
    return [torch.randn(shape) for shape in SHAPES * 2]


def test_equal_updates_share_a_launch() -> None:
    """One kernel updates tensors of different sizes, and the reason is recorded."""
    found = program(updates, *tensors())
    (kernel,) = found.kernels
    (block,) = (a.value for a in kernel.args if a.kind == "constexpr")
    assert isinstance(block, int)
    assert kernel.grid == (sum(-(-torch.Size(s).numel() // block) for s in SHAPES),)
    written = [a.buffer for a in kernel.args if a.is_written]
    assert sorted(written) == sorted(out.buffer for out in found.outputs)
    assert len([a for a in kernel.args if a.kind == "pointer"]) == 3 * len(SHAPES)
    assert kernel.bytes_moved == sum(12 * torch.Size(s).numel() for s in SHAPES)
    assert any("one launch runs all of them" in d.reason for d in found.record.decisions)


def test_updates_by_numbers_of_their_own_share_a_launch() -> None:
    """Each tensor's number is an argument of the one kernel, behind the calls that read it."""
    case = CASES["updates_by_numbers_of_their_own"]
    found = program(case.function, *case.args())
    *_, kernel = found.kernels
    assert "one_tensor(" in kernel.text
    numbers = [a.value for a in kernel.args if a.is_fraction]
    assert len(set(numbers)) == len(numbers) >= 3
    reads = [n for n, step in enumerate(found.steps) if isinstance(step, AtenCall)]
    assert max(reads) < next(n for n, step in enumerate(found.steps) if kernel in [s.kernel for s in step.launches])


def test_every_tensor_keeps_its_nodes() -> None:
    """The kernel and its ops name the nodes of all tensors: each user line finds it."""
    (kernel,) = program(updates, *tensors()).kernels
    in_ops = {node for op in kernel.ops for node in op.origins}
    assert len([n for n in kernel.nodes if ":sub" in n]) == len(SHAPES)
    assert set(kernel.nodes) <= in_ops


def test_a_step_in_between_comes_after_what_it_reads() -> None:
    """A product that reads an update runs after it, and before what reads the product."""

    def function(a: torch.Tensor, b: torch.Tensor) -> list[torch.Tensor]:
        made = torch.sin(b) * 2
        return [torch.sin(a) * 2, made, torch.sin(b @ made) * 2]

    found = program(function, torch.randn(40), torch.randn(30, 30))
    made: set[str] = set(found.inputs)
    for step in found.steps:
        for call in step.calls:
            made |= {name for name in call.result_buffers if name}
        for launch in step.launches:
            read = {a.buffer for a in launch.kernel.args if a.kind == "pointer" and not a.is_written}
            assert read <= made
            made |= {a.buffer for a in launch.kernel.args if a.is_written}
    assert [len(step.calls) for step in found.steps] == [0, 1, 0]


def test_casts_of_parameters_share_a_launch() -> None:
    """A cast for a later product is computed with the first one."""

    def function(x: torch.Tensor, *weights: torch.Tensor) -> torch.Tensor:
        for w in weights:
            x = x @ w.bfloat16()
        return x

    x, weights = torch.randn(8, 32).bfloat16(), [torch.randn(32, 32) for _ in range(3)]
    found = program(function, x, *weights)
    (kernel,) = found.kernels
    assert [len(step.calls) for step in found.steps] == [0, 1, 1, 1]
    assert len([a for a in kernel.args if a.is_written]) == 3


def peak_bytes(found: LoweredProgram) -> int:
    """Return the most bytes that are alive at a step."""
    return max(step.live_bytes for step in live_memory(found).steps)


def test_early_casts_do_not_raise_the_peak_much() -> None:
    """Casts of many parameters are not all in memory from the start."""

    def function(x: torch.Tensor, *weights: torch.Tensor) -> torch.Tensor:
        for w in weights:
            x = x @ w.bfloat16()
        return x

    weights = [torch.randn(700, 700) for _ in range(8)]
    found = program(function, torch.randn(8, 700).bfloat16(), *weights)
    assert peak_bytes(found) < 3 * weights[0].numel() * 2


def test_a_few_rows_of_a_residual_sum_keep_no_summands() -> None:
    """The last kernel reads one row of the sum in memory, not that of each summand."""

    def function(x: torch.Tensor, *weights: torch.Tensor) -> torch.Tensor:
        for w in weights:
            x = x + torch.softmax(x, -1) @ w
        return x[:1] * 2

    x = torch.randn(64, 64)
    found = program(function, x, *(torch.randn(64, 64) for _ in range(8)))
    assert peak_bytes(found) <= 4 * x.numel() * 4


def test_a_counter_waits_past_launches_that_a_product_needs() -> None:
    """Updates that nothing reads share a launch across products that need others."""

    def function(x: torch.Tensor, *given: torch.Tensor) -> tuple[Any, ...]:
        counts, weights = given[:3], given[3:]
        made = []
        for count, w in zip(counts, weights, strict=True):
            made.append(count + 1)
            x = (x @ w).sin() * 2
        return (x, *made)

    counts = [torch.tensor(n) for n in range(3)]
    found = program(function, torch.randn(8, 32), *counts, *(torch.randn(32, 32) for _ in range(3)))
    assert sum("add" in kernel.name for kernel in found.kernels) == 1


@pytest.mark.parametrize(
    "function",
    [
        lambda a, b: [a.sin() * 2, b.cos() * 2],
        lambda a, b: [a.sin() * 2, (b.double().sin() * 2).float()],
        lambda a, b: [a.sin() * 2, b.t().contiguous().sin() * 2],
        lambda a, b: [a.sum(0), b.sum(0)],
    ],
    ids=["other operators", "another dtype", "another order in memory", "reductions"],
)
def test_other_computations_stay_apart(function: Any) -> None:
    """Kernels that differ in more than their sizes have launches of their own."""
    found = program(function, torch.randn(64, 32), torch.randn(16, 8))
    assert len(found.kernels) == 2


def test_kernels_that_take_longer_than_a_launch_stay_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    """A kernel that moves many bytes gains nothing by company."""
    monkeypatch.setattr(combine_launches, "MAX_COMBINED_BYTES", 12 * 1000)
    sizes = [len(k.nodes) for k in program(updates, *tensors()).kernels]
    assert len(sizes) == 2


def test_a_launch_has_a_limited_number_of_pointers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Long lists take several launches."""
    monkeypatch.setattr(combine_launches, "MAX_POINTERS", 6)
    assert [len(k.args) for k in program(updates, *tensors()).kernels] == [7, 7]


@pytest.mark.thorough
@needs_triton
@pytest.mark.parametrize("target", ["cuda:90", "hip:gfx942"])
@pytest.mark.parametrize(
    "name", ["updates_of_many_tensors", "updates_that_depend_on_each_other", "updates_by_numbers_of_their_own"]
)
def test_compiles(name: str, target: str) -> None:
    """The combined kernels compile for each vendor."""
    case = CASES[name]
    found = lower(trace_to_aten(case.function, case.args()), target, print_triton)
    combined = [kernel for kernel in found.kernels if "one_tensor(" in kernel.text]
    assert combined
    for kernel in combined:
        made = compile_kernel(kernel, target)
        assert made.error == ""
