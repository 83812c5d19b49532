"""Programs run as generated Python on the CPU; kernels are interpreted in a worker."""

from __future__ import annotations

import sys
from dataclasses import replace
from typing import Any

import pytest
import sympy
import torch
from torch.nn import functional

from engine.ir.kernels.lowered_program import AtenCall, Buffer, BufferRef, Launch, LoweredProgram
from engine.runtime.program_functions import with_expected_layout
from engine.runtime.workers.process_pool import WorkerPool
from tests.engine.kernels import handwritten_kernels

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="Triton is for Linux")


def run(interpreter: WorkerPool, program: LoweredProgram, *calls: tuple[Any, ...]) -> tuple[list[tuple[Any, ...]], str]:
    """Outputs of each call, and the program's text."""
    result: tuple[list[tuple[Any, ...]], str] = interpreter.call(
        "tests.engine.runtime.worker_tasks:run", (program, *calls)
    )
    return result


def buffer(name: str, *shape: Any, kind: Any = "intermediate", dtype: torch.dtype = torch.float32) -> Buffer:
    """A contiguous buffer."""
    strides: list[Any] = []
    step: Any = 1
    for size in reversed(shape):
        strides.insert(0, step)
        step = step * size
    return Buffer(name, dtype, tuple(shape), tuple(strides), kind)


def buffers(*made: Buffer) -> dict[str, Buffer]:
    """By name."""
    return {b.name: b for b in made}


def gelu_and_softmax() -> LoweredProgram:
    """gelu(a @ w), then softmax."""
    return LoweredProgram(
        "cuda:90",
        ("a", "w"),
        buffers(
            buffer("a", 4, 8, kind="input"), buffer("w", 8, 100, kind="input"), buffer("mm", 4, 100),
            buffer("x", 4, 100), buffer("out", 4, 100, kind="output"),
        ),
        (
            AtenCall("aten:mm", "torch.ops.aten.mm.default", (BufferRef("a"), BufferRef("w")), {}, ("mm",)),
            Launch(handwritten_kernels.gelu(400, "k0", x="mm", out="x")),
            Launch(handwritten_kernels.softmax(4, 100, "k1")),
        ),
        (BufferRef("out"),),
    )  # fmt: skip


def test_kernels_and_library_calls_run_in_order(interpreter: WorkerPool) -> None:
    """An extern between placeholders and kernels, intermediates freed after their last reader."""
    a, w = torch.randn(4, 8), torch.randn(8, 100)
    ((out,),), text = run(interpreter, gelu_and_softmax(), (a, w))
    torch.testing.assert_close(out, functional.softmax(functional.gelu(a @ w), -1))
    assert text.count("del ") == 2  # mm and x


def test_inputs_in_a_box_go_after_their_last_reader(interpreter: WorkerPool) -> None:
    """Boxed inputs are freed after their last use, like intermediates; unused ones at once.

    The list is emptied.
    """
    program = replace(gelu_and_softmax(), inputs=("a", "idle", "w"))
    program = replace(program, buffers={**program.buffers, "idle": buffer("idle", 2, kind="input")})
    a, w = torch.randn(4, 8), torch.randn(8, 100)
    call = "tests.engine.runtime.worker_tasks:run_boxed"
    (out,), text, left = interpreter.call(call, (program, [a, torch.ones(2), w]))
    torch.testing.assert_close(out, functional.softmax(functional.gelu(a @ w), -1))
    assert left == []
    dropped = [
        name for line in text.splitlines() if line.strip().startswith("del ") for name in line.strip()[4:].split(", ")
    ]
    assert [name.partition("_")[2] for name in dropped if name != "r"] == ["idle", "a", "w", "mm", "x"]


def test_symbolic_sizes_are_read_from_the_inputs(interpreter: WorkerPool) -> None:
    """One program serves every size, an empty one included, and returns sizes as ints."""
    s0 = sympy.Symbol("s0", integer=True)
    program = LoweredProgram(
        "cuda:90",
        ("s0", "x"),
        buffers(buffer("x", s0, 3, kind="input"), buffer("out", s0, 3, kind="output")),
        (Launch(handwritten_kernels.gelu(s0 * 3)),),
        (BufferRef("out"), s0 * 2),
        symbol_sources={"s0": (1, 0)},
    )
    calls = [(n, torch.randn(n, 3)) for n in (1, 100, 0, 257)]
    results, _ = run(interpreter, program, *calls)
    for (n, x), (out, twice) in zip(calls, results, strict=True):
        torch.testing.assert_close(out, functional.gelu(x))
        assert twice == 2 * n


def test_a_symbol_may_come_from_an_int_input(interpreter: WorkerPool) -> None:
    """Dimension -1 stands for the value itself."""
    s1 = sympy.Symbol("s1", integer=True)
    program = LoweredProgram("cuda:90", ("n",), {}, (), (s1 + 1, 7, None, "word"), symbol_sources={"s1": (0, -1)})
    ((outputs,), _) = run(interpreter, program, (41,))
    assert outputs == (42, 7, None, "word")


def test_views_are_taken_of_results_and_of_inputs_with_an_offset(interpreter: WorkerPool) -> None:
    """A Ref's offset counts from where the tensor begins, also when an input is itself a view."""
    program = LoweredProgram(
        "cuda:90",
        ("x",),
        buffers(buffer("x", 4, 3, kind="input"), buffer("out", 4, 3, kind="output")),
        (Launch(handwritten_kernels.gelu(12)),),
        (BufferRef("out", (3, 4), (1, 3), 0), BufferRef("x", (2, 3), (6, 1), 3), BufferRef("out", (), (), 5)),
    )
    base = torch.randn(20)
    x = base[4:16].view(4, 3)
    (((turned, odd, one),), _) = run(interpreter, program, (x,))
    torch.testing.assert_close(turned, functional.gelu(x).t())
    torch.testing.assert_close(odd, x[1::2])
    torch.testing.assert_close(one, functional.gelu(x)[1, 2])


def test_results_of_library_calls_are_brought_to_the_strides_kernels_expect(interpreter: WorkerPool) -> None:
    """ATen calls work with a transposed result, unused results and arguments in nested lists."""
    program = LoweredProgram(
        "cuda:90",
        ("x",),
        buffers(
            buffer("x", 6, 4, kind="input"), buffer("turned", 4, 6), buffer("out", 4, 6, kind="output"),
            buffer("second", 2, 4, kind="output"), buffer("both", 12, 4, kind="output"),
        ),
        (
            AtenCall("aten:t", "torch.ops.aten.t.default", (BufferRef("x"),), {}, ("turned",)),
            AtenCall("aten:split", "torch.ops.aten.split.Tensor", (BufferRef("x"), 2), {}, (None, "second", None)),
            AtenCall("aten:cat", "torch.ops.aten.cat.default", ([BufferRef("x"), BufferRef("x")],), {"dim": 0}, ("both",)),
            Launch(handwritten_kernels.gelu(24, x="turned")),
        ),
        (BufferRef("out"), BufferRef("second"), BufferRef("both")),
    )  # fmt: skip
    x = torch.randn(6, 4)
    (((out, second, both),), _) = run(interpreter, program, (x,))
    torch.testing.assert_close(out, functional.gelu(x.t()))
    assert out.stride() == (6, 1)
    assert torch.equal(second, x[2:4])
    assert torch.equal(both, torch.cat([x, x]))


def test_the_same_buffer_may_be_returned_twice_and_an_input_as_it_is(interpreter: WorkerPool) -> None:
    """Outputs are what the references say, identity included."""
    program = LoweredProgram(
        "cuda:90", ("x",), buffers(buffer("x", 2, kind="input")), (), (BufferRef("x"), BufferRef("x"))
    )
    (((first, second),), _) = run(interpreter, program, (torch.ones(2),))
    assert torch.equal(first, torch.ones(2))
    assert first.data_ptr() == second.data_ptr()


def test_a_result_of_another_shape_is_an_error_and_never_read() -> None:
    """Kernels were compiled for the shape: reading another would be a wrong result."""
    with pytest.raises(RuntimeError, match=r"returned torch.float32 \(3, 2\) but the graph was compiled for"):
        with_expected_layout(torch.zeros(3, 2), (2, 3), (3, 1), torch.float32, "mm")


def test_settling_copies_only_what_has_other_strides() -> None:
    """Strides of single elements do not matter; expanded tensors keep their values."""
    same = torch.zeros(1, 4).as_strided((1, 4), (77, 1))
    assert with_expected_layout(same, (1, 4), (4, 1), torch.float32, "b") is same
    turned = torch.arange(6.0).view(2, 3).t()
    fresh = with_expected_layout(turned, (3, 2), (2, 1), torch.float32, "b")
    assert fresh.stride() == (2, 1)
    assert torch.equal(fresh, turned)
    wide = torch.arange(3.0).expand(2, 3)
    kept = with_expected_layout(wide.contiguous(), (2, 3), (0, 1), torch.float32, "b")
    assert kept.stride() == (0, 1)
    assert torch.equal(kept, wide)


@pytest.mark.thorough
def test_names_that_are_not_python_are_no_obstacle(interpreter: WorkerPool) -> None:
    """Placeholders and buffers are named by the graph."""
    program = LoweredProgram(
        "cuda:90",
        ("L['x'].weight", "class"),
        buffers(buffer("L['x'].weight", 2, kind="input"), buffer("class", 2, kind="input"), buffer("a-b", 2)),
        (AtenCall("aten:add", "_operator.add", (BufferRef("L['x'].weight"), BufferRef("class")), {}, ("a-b",)),),
        (BufferRef("a-b"),),
    )
    (((total,),), _) = run(interpreter, program, (torch.ones(2), torch.ones(2)))
    assert torch.equal(total, torch.full((2,), 2.0))
