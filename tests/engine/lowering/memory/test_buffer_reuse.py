"""Memory that nothing reads any more is taken over, and no value is lost by it."""

from __future__ import annotations

from typing import Any

import torch

from engine.ir.kernels.lowered_program import LoweredProgram
from engine.kernels.triton.printer import print_triton
from engine.lowering.driver import lower
from engine.lowering.memory.buffer_reuse import IN_PLACE_REASON, LAST_USE_REASON
from tests.engine.lowering.op_cases import CASES
from tests.engine.lowering.trace_aten import trace_to_aten

F = torch.nn.functional
SIDE = torch.randn(256, 256)


def lowered(function: Any, *args: torch.Tensor) -> LoweredProgram:
    """The program of a function."""
    return lower(trace_to_aten(function, args), "cuda:90", print_triton)


def reuses(program: LoweredProgram) -> dict[str, str]:
    """What takes over what."""
    return {r.buffer: r.reused for r in program.record.reuses}


def test_what_follows_a_product_is_computed_in_its_memory() -> None:
    """An elementwise epilogue reuses the matmul's buffer; the record has the bytes saved.

    The kernel reads each element of the product once and writes its own result there.
    """
    program = lowered(lambda x, w: F.gelu(x @ w + 1) @ w, SIDE, SIDE)
    (found,) = program.record.reuses
    assert (found.reused, found.reason, found.bytes_saved) == ("mm", IN_PLACE_REASON, 256 * 256 * 4)
    assert program.buffers[found.buffer].reuses == "mm"
    assert f"{found.buffer} = mm  # the memory is reused" in program.record.wrapper_text


def test_what_is_read_again_keeps_its_memory() -> None:
    """A later reader, an output, an argument of the caller's: none is overwritten."""
    assert not reuses(lowered(lambda x, w: ((y := x @ w) + 1) @ w + y, SIDE, SIDE)).get("add", "")
    assert not reuses(lowered(lambda x, w: ((y := x @ w), (y + 1) @ w), SIDE, SIDE))
    assert not reuses(lowered(lambda x, w: (x + 1) @ w, SIDE, SIDE))


def test_other_elements_than_those_written_are_read_first() -> None:
    """No buffer is reused when other elements of the product are still read after a write.

    Examples are a transposed read and a reduction over rows.
    """
    program = lowered(lambda x, w: (((y := x @ w) + y.t()) * 2) @ w, SIDE, SIDE)
    assert "mm" not in reuses(program).values()
    program = lowered(lambda x, w: torch.softmax(x @ w, -1) @ w, SIDE, SIDE)
    assert "mm" not in reuses(program).values()


def test_a_scatter_updates_what_nobody_reads_afterwards() -> None:
    """The tensor that a scatter starts from is copied only if its old elements are still read."""
    rows = torch.arange(4)
    program = lowered(lambda x, i, g: (x * 2).index_copy(0, i, g) @ x, SIDE, rows, SIDE[:4])
    assert ".copy_(" not in program.record.wrapper_text
    assert "updates some of its elements" in {r.reason for r in program.record.reuses}.pop()
    program = lowered(lambda x, i, g: (y := x * 2).index_copy(0, i, g) @ y, SIDE, rows, SIDE[:4])
    assert ".copy_(" in program.record.wrapper_text


def test_memory_is_reused_by_the_next_kernel() -> None:
    """What was read for the last time by one kernel is where the next one writes."""
    case = CASES["buffer_reuse_chain"]
    program = lowered(case.function, *case.args())
    assert LAST_USE_REASON in {r.reason for r in program.record.reuses}


def test_small_or_symbolic_tensors_have_their_own() -> None:
    """There is nothing to save, or no knowing what."""
    assert not reuses(lowered(lambda x, w: F.gelu(x @ w) @ w, SIDE[:8, :8], SIDE[:8, :8]))
    dynamic = trace_to_aten(lambda x, w: F.gelu(x @ w) @ w, (SIDE, SIDE), is_dynamic=True)
    assert not lower(dynamic, "cuda:90", print_triton).record.reuses
