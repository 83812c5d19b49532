"""Verify lowered programs kernel by kernel, with every argument passed to the interpreter.

Kernels need more than their inputs; the interpreter receives those values too.
"""

from __future__ import annotations

import pytest
import torch

from engine.kernels.triton.printer import print_triton
from engine.lowering.driver import lower
from engine.runtime.verify.kernels import verify_kernels
from tests.engine.lowering.op_cases import CASES
from tests.engine.lowering.trace_aten import trace_to_aten
from tests.markers import needs_triton

pytestmark = needs_triton


@pytest.mark.parametrize(
    "name",
    [
        "scatter_add_and_index_add",
        "scatter_and_index_put",
        "embedding_backward",
        "equal_blocks",
        "rows_and_elements_compared",
    ],
)
def test_every_kernel_is_verified(name: str) -> None:
    """Every distinct kernel has an outcome, and none differs from ATen.

    A kernel that only prepares data for another is verified together with that one.
    """
    case = CASES[name]
    graph = trace_to_aten(case.function, case.args())
    program = lower(graph, "cuda:90", print_triton)
    found = verify_kernels(program, graph, case.args())
    assert found.keys() == {k.id for k in program.kernels}
    compared = [r for r in found.values() if "its outputs have no ATen node" not in r.note]
    assert len(compared) >= len(found) - 1
    assert {r.outcome for r in compared} <= {"equal", "close"}


def test_bfloat16_rounds_to_nearest_in_the_interpreter() -> None:
    """One bfloat16 multiplication is bitwise equal to ATen's, including ties, inf and NaN."""
    values = torch.linspace(-4, 4, 4096).bfloat16()
    values[:2] = torch.tensor([torch.inf, torch.nan])
    graph = trace_to_aten(lambda a: a * 1.0078125, (values,))
    program = lower(graph, "cuda:90", print_triton)
    (found,) = verify_kernels(program, graph, (values,)).values()
    assert found.outcome == "equal"


@pytest.mark.thorough
def test_results_of_calls_with_numbered_names_are_distinct() -> None:
    """Kernels receive the output they read when ``topk`` result 1 and ``topk_1`` both exist.

    ``topk`` has a result 1, and ``topk_1`` is another call.
    """

    def function(a: torch.Tensor) -> tuple[torch.Tensor, ...]:
        (first, places), (second, others) = a.topk(3), (-a).topk(3)
        return first * 2, places + 1, second * 3, others - 1

    x = torch.randn(4, 9)
    graph = trace_to_aten(function, (x,))
    program = lower(graph, "cuda:90", print_triton)
    assert {r.outcome for r in verify_kernels(program, graph, (x,)).values()} <= {"equal", "close"}


def test_fractions_of_symbolic_sizes_reach_the_interpreter() -> None:
    """A kernel receives float expressions of this call's input sizes as arguments."""
    x = torch.randn(6, 10)
    graph = trace_to_aten(
        lambda a: a * (1.0 / a.shape[0]) + a.double().sum(1, keepdim=True) / a.shape[1] ** 0.5, (x,), is_dynamic=True
    )
    program = lower(graph, "cuda:90", print_triton)
    assert any(argument.triton_type == "fp32" for kernel in program.kernels for argument in kernel.args)
    assert {r.outcome for r in verify_kernels(program, graph, (x,)).values()} <= {"equal", "close"}
