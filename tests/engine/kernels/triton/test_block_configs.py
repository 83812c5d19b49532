"""Candidate block configurations are few, fit the device, and compute the same result."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch

from engine.ir.kernels.lowered_program import LoweredProgram
from engine.ir.kernels.template_choice import ChoiceRequest, ChoiceResult
from engine.kernels.compile_kernel import compile_kernel
from engine.kernels.resources import DEVICE_LIMITS
from engine.kernels.triton.block_configs import MAX_CANDIDATES, candidate_blockings, estimate_seconds
from engine.kernels.triton.block_heuristics import MAX_LOAD_SHARED_BYTES, load_shared_bytes
from engine.kernels.triton.printer import print_triton
from engine.lowering.driver import lower
from tests.engine.lowering.interpreter_results import run_in_batches
from tests.engine.lowering.trace_aten import trace_to_aten
from tests.markers import needs_triton

BF16 = torch.bfloat16
CASES = (
    "scatter_add_and_index_add", "batch_norm", "few_long_columns", "buffer_reuse_chain", "long_ragged_rows", "long_ragged_products", "transposed_reads", "two_pass_softmax", "cummax_and_cummin", "transposes",
)  # fmt: skip


@pytest.mark.thorough
@needs_triton
@pytest.mark.parametrize("name", CASES)
def test_every_candidate_computes_the_same(
    name: str, request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Each kernel of these cases in another of its ways, in Triton's interpreter."""
    found = run_in_batches(request, tmp_path_factory, "--cuts")
    wrong = {k: v for k, v in found.items() if k.partition(":")[0] == name and v}
    assert any(k.startswith(f"{name}:") for k in found)
    assert wrong == {}


@dataclass
class RecordingChooser:
    """Takes the way at this position, and keeps what it was asked."""

    position: int = 0
    questions: list[ChoiceRequest] = field(default_factory=list)

    def choose(self, question: ChoiceRequest) -> ChoiceResult:
        """That position, with a reason."""
        self.questions.append(question)
        return ChoiceResult(self.position, reason="It was told to.")


FUNCTIONS: dict[str, Callable[..., Any]] = {
    "pointwise": lambda x: torch.sigmoid(x) * 2,
    "rows": lambda x: torch.softmax(x, -1),
    "columns": lambda x: x.sum(0),
    "turned": lambda x: x.t() + 1,
    "cumsum_and_triangles": lambda x: x.cumsum(-1),
}


def program(name: str, chooser: RecordingChooser | None) -> LoweredProgram:
    """Lower one of these functions for a 4096 x 2048 matrix that has sizes but no data."""
    with torch.device("meta"):
        given = torch.empty(4096, 2048, dtype=BF16)
    graph = trace_to_aten(FUNCTIONS[name], (given,))
    return (
        lower(graph, "cuda:90", print_triton)
        if chooser is None
        else lower(graph, "cuda:90", print_triton, chooser=chooser, candidate_blockings=candidate_blockings)
    )


@pytest.mark.parametrize("name", FUNCTIONS)
def test_default_is_first_and_the_choice_is_applied(name: str) -> None:
    """The first candidate is the default text; choosing the last applies and records it.

    The default text is that of lowering without a chooser. The last candidate has block sizes of its own.
    """
    usual, asked = program(name, None), RecordingChooser()
    same = program(name, asked)
    assert [k.text for k in same.kernels] == [k.text for k in usual.kernels]
    assert [k.args for k in same.kernels] == [k.args for k in usual.kernels]
    assert 2 <= len(asked.questions[0].candidates) <= MAX_CANDIDATES + 1
    other = program(name, RecordingChooser(len(asked.questions[0].candidates) - 1))
    before, after = same.kernels[0], other.kernels[0]
    assert (before.text, before.args, before.num_warps) != (after.text, after.args, after.num_warps)
    assert other.record.autotune_choices[0].chosen == asked.questions[0].candidates[-1].label
    assert other.record.autotune_choices[0].chosen.startswith("blocks of ")


def test_candidates_fit_the_device() -> None:
    """What is under way at once fits into shared memory, whatever is read."""
    seen: list[Any] = []

    def kept(kernel: Any) -> Any:
        seen.append(kernel)
        return candidate_blockings(kernel)

    for dtype in (torch.float64, torch.float32, BF16):
        with torch.device("meta"):
            pair = tuple(torch.empty(1 << 14, 1 << 12, dtype=dtype) for _ in range(2))
        lower(
            trace_to_aten(lambda x, y: (x * y).sum(0), pair),
            "cuda:90",
            print_triton,
            chooser=RecordingChooser(),
            candidate_blockings=kept,
        )
    for kernel in seen:
        assert all(load_shared_bytes(kernel, c) <= MAX_LOAD_SHARED_BYTES for c in candidate_blockings(kernel))
        assert all(estimate_seconds(kernel, c) > 0 for c in candidate_blockings(kernel))


def test_data_dependent_kernels_are_not_tuned() -> None:
    """Small kernels, and kernels that read wherever whole numbers point, are cut as usual."""
    asked = RecordingChooser()
    with torch.device("meta"):
        small, table, at = torch.empty(64, 64), torch.empty(50_000, 1024), torch.empty(8192, dtype=torch.int64)
    for function, given in ((torch.sin, (small,)), (lambda t, a: t[a] * 2, (table, at))):
        lower(
            trace_to_aten(function, given),
            "cuda:90",
            print_triton,
            chooser=asked,
            candidate_blockings=candidate_blockings,
        )
    assert asked.questions == []


@pytest.mark.thorough
@needs_triton
def test_long_columns_are_read_ahead() -> None:
    """Sums over many rows prefetch several blocks at once through shared memory.

    Targets with less shared memory use smaller blocks.
    """
    with torch.device("meta"):
        given = torch.empty(16384, 8192, dtype=BF16)
    (kernel,) = lower(trace_to_aten(lambda x: x.sum(0), (given,)), "cuda:90", print_triton).kernels
    assert "num_stages=4" in kernel.text
    record = compile_kernel(kernel, "cuda:90")
    assert not record.error
    assert "cp.async" in next(x.text for x in record.listings if x.stage == "ptx")
    for target in ("cuda:80", "cuda:89", "hip:gfx942"):
        record = compile_kernel(kernel, target)
        assert not record.error
        assert record.resources is not None
        assert (record.resources.shared_bytes or 0) <= DEVICE_LIMITS[target].max_shared_per_block


@needs_triton
def test_a_scan_along_rows_of_memory_takes_adjacent_columns() -> None:
    """A running sum over a middle dimension reads whole lines without spilling."""
    with torch.device("meta"):
        given = torch.empty(8, 1024, 512)
    (kernel,) = lower(trace_to_aten(lambda x: x.exp().cumsum(1), (given,)), "cuda:90", print_triton).kernels
    assert kernel.grid == (256,)
    record = compile_kernel(kernel, "cuda:90")
    assert record.resources is not None
    assert record.resources.spills == 0
