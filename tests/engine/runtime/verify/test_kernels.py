"""Kernels verified one by one in Triton's interpreter against ATen."""

from __future__ import annotations

import operator
import sys
from dataclasses import replace
from typing import Any

import pytest
import sympy
import torch
import torch.fx

from engine.ir.kernels.generated_kernel import GeneratedKernel
from engine.ir.kernels.lowered_program import AtenCall, Buffer, BufferRef, Launch, LoweredProgram
from engine.runtime.verify import kernels
from engine.runtime.verify.kernels import verify_kernels
from tests.engine.kernels import handwritten_kernels

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="Triton is for Linux")
aten = torch.ops.aten


def buffer(name: str, *shape: Any, kind: Any = "intermediate", dtype: torch.dtype = torch.float32) -> Buffer:
    """A contiguous buffer of at most two dimensions."""
    return Buffer(name, dtype, shape, (shape[1], 1) if len(shape) == 2 else (1,), kind)


def two_steps(*kernels: GeneratedKernel) -> LoweredProgram:
    """x -> gelu -> middle -> softmax -> out, with kernels in the places of both."""
    graph = torch.fx.Graph()
    x = graph.placeholder("x")
    middle = graph.call_function(aten.gelu.default, (x,), name="middle")
    out = graph.call_function(aten._softmax.default, (middle, 1, False), name="out")
    graph.output((out,))
    made = (buffer("x", 4, 100, kind="input"), buffer("middle", 4, 100), buffer("out", 4, 100, kind="output"))
    return LoweredProgram(
        "cuda:90",
        ("x",),
        {b.name: b for b in made},
        tuple(Launch(k) for k in kernels),
        (BufferRef("out"),),
        reference_graph=torch.fx.GraphModule({}, graph),
    )


def gelu() -> GeneratedKernel:
    """x -> middle."""
    return handwritten_kernels.gelu(400, "k0", out="middle")


def softmax() -> GeneratedKernel:
    """middle -> out."""
    kernel = handwritten_kernels.softmax(4, 100, "k1")
    return replace(kernel, args=(handwritten_kernels.pointer("x", buffer="middle"), *kernel.args[1:]))


def changed(kernel: GeneratedKernel, old: str, new: str) -> GeneratedKernel:
    """The kernel with a mistake in it."""
    assert old in kernel.text
    return replace(kernel, text=kernel.text.replace(old, new))


X = torch.linspace(-3, 3, 400).view(4, 100)


def test_right_kernels_are_close_or_equal() -> None:
    """Each has its outcome, error and tolerance; the inputs are as they were."""
    x = X.clone()
    found = verify_kernels(two_steps(gelu(), softmax()), None, (x,))
    assert set(found) == {"k0", "k1"}
    assert {record.outcome for record in found.values()} <= {"equal", "close"}
    assert all(r.max_error is not None and r.max_error < 1e-6 for r in found.values())
    assert torch.equal(x, X)


def test_only_the_kernel_at_fault_is_blamed() -> None:
    """A mistake in the first kernel does not show in the second, which is fed ATen's values."""
    found = verify_kernels(two_steps(changed(gelu(), "0.5 * value", "0.51 * value"), softmax()), None, (X,))
    assert found["k0"].outcome == "different"
    assert found["k0"].note.startswith("first kernel that differs: middle[0, 0] is ")
    assert found["k1"].outcome in {"equal", "close"}


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("power / total", "power * 1.001 / total"),
        ("power / total", "power / (total + 1e-2)"),
        ('other=float("-inf")', "other=0.0"),
        ("tl.sum(power, 0)", "tl.sum(tl.where(i < cols - 1, power, 0.0), 0)"),
    ],
)
def test_a_subtle_mistake_is_found(old: str, new: str) -> None:
    """Verification finds a wrong scale, constant, padding value or a skipped element.

    The constant is in the denominator, the padding takes part, and one element is left out of a sum.
    """
    found = verify_kernels(two_steps(gelu(), changed(softmax(), old, new)), None, (X,))
    assert found["k1"].outcome == "different"


def test_overflow_to_nan_is_different() -> None:
    """NaN where ATen has numbers is no rounding error."""
    found = verify_kernels(
        two_steps(gelu(), changed(softmax(), "tl.max(value, 0)", "tl.max(value, 0) - 200")), None, (X,)
    )
    assert found["k1"].outcome == "different"
    assert "nan" in found["k1"].note


def test_nan_and_infinity_that_aten_has_too_are_equal() -> None:
    """A NaN in the input is a NaN in both, and infinities of the same sign agree."""
    x = X.clone()
    x[0, 3], x[1, 5] = float("nan"), -float("inf")
    found = verify_kernels(two_steps(gelu(), softmax()), None, (x,))
    assert {record.outcome for record in found.values()} <= {"equal", "close"}


def test_a_kernel_that_writes_outside_its_buffer_is_different() -> None:
    """A missing mask is found even where every value that counts is right."""
    found = verify_kernels(
        two_steps(changed(gelu(), "tl.store(out + i, ", "tl.store(out + 200 + i, "), softmax()), None, (X,)
    )
    assert found["k0"].outcome == "different"
    careless = changed(
        changed(
            gelu(), "libdevice.erf(value * 0.7071067811865476)), mask)", "libdevice.erf(value * 0.7071067811865476)))"
        ),
        "tl.load(x + i, mask)",
        "tl.load(x + i, mask, other=0.0)",
    )
    small = two_steps(careless, softmax())
    assert (
        verify_kernels(small, None, (X,))["k0"].note
        == "first kernel that differs: it writes outside the bounds of middle"
    )


def test_elements_never_written_are_different() -> None:
    """Memory starts with a pattern that no result has."""
    found = verify_kernels(two_steps(replace(gelu(), grid=(1,)), softmax()), None, (X,))
    assert found["k0"].outcome == "different"


def test_a_kernel_that_changes_what_it_should_only_read_is_different() -> None:
    """An argument that is not declared as written must be left alone."""
    sly = changed(gelu(), "    tl.store(out + i,", "    tl.store(x + i, value + 1, mask)\n    tl.store(out + i,")
    assert "mutates x" in verify_kernels(two_steps(sly, softmax()), None, (X,))["k0"].note


def test_a_kernel_that_cannot_run_is_not_verifiable() -> None:
    """The reason is told; the other kernels are verified."""
    found = verify_kernels(
        two_steps(changed(gelu(), "tl.load(x + i, mask)", "tl.lode(x + i, mask)"), softmax()), None, (X,)
    )
    assert found["k0"].outcome == "not verifiable"
    assert found["k0"].note.startswith("not verifiable: in Triton's interpreter, ")
    assert "lode" in found["k0"].note
    assert found["k1"].outcome in {"equal", "close"}


@pytest.mark.thorough
def test_a_kernel_that_takes_too_long_is_not_verifiable(monkeypatch: pytest.MonkeyPatch) -> None:
    """The worker is stopped and replaced."""
    monkeypatch.setattr(kernels, "TIMEOUT", 2.0)
    slow = replace(gelu(), grid=(10**8,))
    found = verify_kernels(two_steps(slow, softmax()), None, (X,))
    assert "longer than 2 s" in found["k0"].note
    assert found["k1"].outcome in {"equal", "close"}


def test_without_a_graph_nothing_is_verifiable() -> None:
    """There is no guess where there is no reference."""
    program = replace(two_steps(gelu()), reference_graph=None)
    assert verify_kernels(program, None, (X,))["k0"].outcome == "not verifiable"


def test_buffers_without_a_node_are_carried_from_kernel_to_kernel() -> None:
    """Scratch is not comparable by itself; the kernel that reads it is compared."""
    program = two_steps(
        replace(gelu(), args=handwritten_kernels.gelu(400, out="scratch").args),
        replace(softmax(), args=(handwritten_kernels.pointer("x", buffer="scratch"), *softmax().args[1:])),
    )
    program = replace(program, buffers={**program.buffers, "scratch": buffer("scratch", 4, 100)})
    found = verify_kernels(program, None, (X,))
    assert found["k0"].outcome == "not verifiable"
    assert found["k1"].outcome in {"equal", "close"}


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_low_precision_is_compared_with_its_own_tolerance(dtype: torch.dtype) -> None:
    """Verification tolerates float32 intermediates against ATen's rounding, but not mistakes.

    The kernel computes in float32, while ATen rounds after each operation.
    """
    kinds = {torch.float16: "*fp16", torch.bfloat16: "*bf16"}
    graph = torch.fx.Graph()
    x, weight, bias = (graph.placeholder(name) for name in ("x", "weight", "bias"))
    out = graph.call_function(torch.nn.functional.layer_norm, (x, (100,), weight, bias, 1e-5), name="out")
    graph.output((out,))
    kernel = handwritten_kernels.layernorm()
    args = tuple(replace(a, triton_type=kinds[dtype]) if a.kind == "pointer" else a for a in kernel.args)
    made = (
        buffer("x", 4, 100, kind="input", dtype=dtype), buffer("weight", 100, kind="input", dtype=dtype),
        buffer("bias", 100, kind="input", dtype=dtype), buffer("out", 4, 100, kind="output", dtype=dtype),
    )  # fmt: skip
    program = LoweredProgram(
        "cuda:90", ("x", "weight", "bias"), {b.name: b for b in made}, (Launch(replace(kernel, args=args)),), (BufferRef("out"),),
        reference_graph=torch.fx.GraphModule({}, graph),
    )  # fmt: skip
    inputs = (X.to(dtype), torch.linspace(0.5, 1.5, 100).to(dtype), torch.linspace(-1, 1, 100).to(dtype))
    assert verify_kernels(program, None, inputs)["k0"].outcome in {"equal", "close"}
    wrong = changed(replace(kernel, args=args), "* w + b", "* w")
    assert verify_kernels(replace(program, steps=(Launch(wrong),)), None, inputs)["k0"].outcome == "different"


def test_integers_and_symbolic_sizes() -> None:
    """Integer results must be equal; sizes are read from the inputs."""
    s0 = sympy.Symbol("s0", integer=True)
    graph = torch.fx.Graph()
    index, table = graph.placeholder("index"), graph.placeholder("table")
    out = graph.call_function(aten.embedding.default, (table, index), name="out")
    graph.output((out,))
    kernel = handwritten_kernels.embedding()
    args = (
        *(
            handwritten_kernels.pointer("index", "*i64"),
            handwritten_kernels.pointer("table", "*i64"),
            handwritten_kernels.pointer("out", "*i64", written=True),
        ),
        *(
            handwritten_kernels.size("count", s0 * 48),
            handwritten_kernels.constexpr("width", 48),
            handwritten_kernels.constexpr("BLOCK", 128),
        ),
    )
    kernel = replace(kernel, args=args, grid=((s0 * 48 + 127) // 128,))
    made = (
        Buffer("index", torch.int64, (s0,), (1,), "input"), buffer("table", 20, 48, kind="input", dtype=torch.int64),
        Buffer("out", torch.int64, (s0, 48), (48, 1), "output"),
    )  # fmt: skip
    program = LoweredProgram(
        "cuda:90", ("index", "table"), {b.name: b for b in made}, (Launch(kernel),), (BufferRef("out"),),
        symbol_sources={"s0": (0, 0)}, reference_graph=torch.fx.GraphModule({}, graph),
    )  # fmt: skip
    for count in (1, 7, 0):
        inputs = (torch.arange(count) * 3 % 20, torch.arange(960).view(20, 48))
        assert verify_kernels(program, None, inputs)["k0"].outcome == "equal"
    wrong = changed(kernel, "row * width", "(row + 1) * width")
    found = verify_kernels(
        replace(program, steps=(Launch(wrong),)), None, (torch.arange(5), torch.arange(960).view(20, 48))
    )
    assert found["k0"].outcome == "different"


@pytest.mark.thorough
@pytest.mark.parametrize(("factor", "outcomes"), [("1.0", {"equal", "close"}), ("1.02", {"different"})])
def test_a_small_mistake_shows_in_16_bits_too(factor: str, outcomes: set[str]) -> None:
    """Verification against exact values detects a two per cent error in bfloat16.

    The error is a few units in the last place.
    """
    graph = torch.fx.Graph()
    x = graph.placeholder("x")
    out = graph.call_function(aten._softmax.default, (x, 1, False), name="out")
    graph.output((out,))
    kernel = changed(handwritten_kernels.softmax(), "power / total", f"power * {factor} / total")
    kernel = changed(kernel, 'other=float("-inf"))', 'other=float("-inf")).to(tl.float32)')
    args = tuple(replace(a, triton_type="*bf16") if a.kind == "pointer" else a for a in kernel.args)
    made = (buffer(n, 4, 100, kind=k, dtype=torch.bfloat16) for n, k in (("x", "input"), ("out", "output")))
    program = LoweredProgram(
        "cuda:90", ("x",), {b.name: b for b in made}, (Launch(replace(kernel, args=args)),), (BufferRef("out"),),
        reference_graph=torch.fx.GraphModule({}, graph),
    )  # fmt: skip
    found = verify_kernels(program, None, (X.bfloat16(),))["k0"]
    assert found.outcome in outcomes, found


def test_one_of_several_results_of_a_call_is_known_by_its_place() -> None:
    """sort returns values and indices: a kernel that reads the values is fed ATen's."""
    graph = torch.fx.Graph()
    x = graph.placeholder("x")
    both = graph.call_function(aten.sort.default, (x, 1), name="sort")
    values = graph.call_function(operator.getitem, (both, 0), name="getitem")
    out = graph.call_function(aten.gelu.default, (values,), name="out")
    graph.output((out,))
    made = (buffer("x", 4, 100, kind="input"), buffer("sort_0", 4, 100), buffer("out", 4, 100, kind="output"))
    steps = (
        AtenCall("aten:sort", aten.sort.default, (BufferRef("x"), 1), {}, ("sort_0", None)),
        Launch(handwritten_kernels.gelu(400, x="sort_0")),
    )
    program = LoweredProgram(
        "cuda:90",
        ("x",),
        {b.name: b for b in made},
        steps,
        (BufferRef("out"),),
        reference_graph=torch.fx.GraphModule({}, graph),
        multi_output_buffers={"sort_0": ("sort", 0)},
    )
    assert verify_kernels(program, None, (X.flip(1),))["k0"].outcome in {"equal", "close"}
    wrong = (steps[0], Launch(changed(handwritten_kernels.gelu(400, x="sort_0"), "0.5 * value", "0.50001 * value")))
    assert verify_kernels(replace(program, steps=wrong), None, (X.flip(1),))["k0"].outcome == "different"
