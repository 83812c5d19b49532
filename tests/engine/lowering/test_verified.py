"""Lowered programs, verified kernel by kernel: what kernels need beside their inputs reaches the interpreter too."""

from __future__ import annotations

import importlib.util

import pytest
import torch

from engine.kernels.triton import emit
from engine.lowering.driver import lower
from engine.runtime.interpret import verify
from tests.engine.lowering.cases import CASES
from tests.engine.lowering.tracing import trace

pytestmark = pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="no Triton here")


@pytest.mark.parametrize(
    "name", ["added_anywhere", "written_anywhere", "gradients_of_tables", "equal_blocks", "rows_and_elements_compared"]
)
def test_every_kernel_is_verified(name: str) -> None:
    """Each distinct kernel has an outcome, and none differs from ATen; what only prepares another is verified with that one."""
    case = CASES[name]
    graph = trace(case.function, case.args())
    program = lower(graph, "cuda:90", emit)
    found = verify(program, graph, case.args())
    assert found.keys() == {k.id for k in program.kernels}
    compared = [r for r in found.values() if "no ATen node computes what it writes" not in r.note]
    assert len(compared) >= len(found) - 1
    assert {r.outcome for r in compared} <= {"equal", "close"}


def test_bfloat16_rounds_to_nearest_in_the_interpreter() -> None:
    """One multiplication in bfloat16 is ATen's to the last bit, ties and values that are no numbers included."""
    values = torch.linspace(-4, 4, 4096).bfloat16()
    values[:2] = torch.tensor([torch.inf, torch.nan])
    graph = trace(lambda a: a * 1.0078125, (values,))
    program = lower(graph, "cuda:90", emit)
    (found,) = verify(program, graph, (values,)).values()
    assert found.outcome == "equal"


def test_results_of_calls_with_numbered_names_are_told_apart() -> None:
    """``topk`` has a result 1, and ``topk_1`` is another call: kernels are given the values of the one that they read."""

    def function(a: torch.Tensor) -> tuple[torch.Tensor, ...]:
        (first, places), (second, others) = a.topk(3), (-a).topk(3)
        return first * 2, places + 1, second * 3, others - 1

    x = torch.randn(4, 9)
    graph = trace(function, (x,))
    program = lower(graph, "cuda:90", emit)
    assert {r.outcome for r in verify(program, graph, (x,)).values()} <= {"equal", "close"}


def test_fractions_of_symbolic_sizes_reach_the_interpreter() -> None:
    """A kernel is given what follows from the sizes of this call's inputs, as a number that need not be whole."""
    x = torch.randn(6, 10)
    graph = trace(
        lambda a: a * (1.0 / a.shape[0]) + a.double().sum(1, keepdim=True) / a.shape[1] ** 0.5, (x,), is_dynamic=True
    )
    program = lower(graph, "cuda:90", emit)
    assert any(argument.triton_type == "fp32" for kernel in program.kernels for argument in kernel.args)
    assert {r.outcome for r in verify(program, graph, (x,)).values()} <= {"equal", "close"}
