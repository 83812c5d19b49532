"""Matrix products of odd sizes are padded where it pays, with unchanged results."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import pytest
import torch

import engine
from engine.kernels.triton.printer import print_triton
from engine.lowering.driver import lower
from engine.lowering.passes import pad_matmul
from engine.lowering.passes.decompose import decompose
from tests.engine.lowering.trace_aten import trace_to_aten

aten = torch.ops.aten
BF16 = torch.bfloat16


def pad_graph(function: Callable[..., Any], *args: torch.Tensor) -> torch.fx.GraphModule:
    """The function's graph after the pass."""
    return pad_matmul.pad_matmul(decompose(trace_to_aten(function, args)))


def sizes(module: torch.fx.GraphModule) -> list[tuple[int, ...]]:
    """Sizes of each product's operands."""
    products = [n for n in module.graph.nodes if n.target in (aten.mm.default, aten.addmm.default)]
    return [tuple(x.meta["val"].shape for x in n.args[-2:]) for n in products]


def unpadded(x: torch.Tensor, w: torch.Tensor, b: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """Compute products with a transposed weight, a bias, a transposed left side, an odd K.

    K is the inner size of the product.
    """
    y = x @ w.t()
    return y, torch.addmm(b, x, w.t()), y.t() @ x, y @ w, torch.addmm(x, y, w, beta=0.5, alpha=2)


ARGS = (
    lambda: torch.randn(24, 32).to(BF16),
    lambda: torch.randn(19, 32).to(BF16),
    lambda: torch.randn(19).to(BF16),
)


@pytest.fixture
def force_padding(monkeypatch: pytest.MonkeyPatch) -> None:
    """Padding gains everywhere."""
    monkeypatch.setattr(pad_matmul, "MIN_GAIN_SECONDS", -1.0)


@pytest.mark.usefixtures("force_padding")
def test_results_are_the_same() -> None:
    """Every product has sizes in whole lines, and the values of the plain one."""
    torch.manual_seed(0)
    args = [make() for make in ARGS]
    module = pad_graph(unpadded, *args)
    assert all(size % 8 == 0 for pair in sizes(module) for shape in pair for size in shape)
    for made, wanted in zip(module(*args), unpadded(*args), strict=True):
        torch.testing.assert_close(made, wanted, rtol=2e-2, atol=2e-2)


@pytest.mark.usefixtures("force_padding")
def test_one_matrix_is_padded_once() -> None:
    """The gradient of a head is padded once, in memory order, for both products that read it."""
    args = (torch.randn(24, 19).to(BF16), torch.randn(19, 32).to(BF16), torch.randn(24, 32).to(BF16))
    module = pad_graph(lambda g, w, x: (g @ w, g.t() @ x), *args)
    pads = [n.args[1] for n in module.graph.nodes if n.target is aten.constant_pad_nd.default]
    assert sorted(pads) == [[0, 0, 0, 5], [0, 5]]
    assert sizes(module) == [((24, 24), (24, 32)), ((24, 24), (24, 32))]


@pytest.mark.usefixtures("force_padding")
def test_a_caller_sees_eagers_strides() -> None:
    """The padded product does not leave the program."""
    args = (torch.randn(24, 32).to(BF16), torch.randn(19, 32).to(BF16))
    program = lower(trace_to_aten(lambda x, w: ((y := x @ w.t()), y.view(2, 12, 19)), args), "cuda:90", print_triton)
    assert {b.stride for b in program.buffers.values() if b.kind == "output"} == {(19, 1), (228, 19, 1)}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.usefixtures("force_padding")
def test_float32_is_not_padded(dtype: torch.dtype) -> None:
    """Only half precision has kernels that want whole lines."""
    module = pad_graph(lambda x, w: x @ w.t(), torch.randn(24, 32, dtype=dtype), torch.randn(19, 32, dtype=dtype))
    assert sizes(module) == [((24, 32), (32, 19))]


@pytest.mark.parametrize("packs", [False, True])
@pytest.mark.usefixtures("force_padding")
def test_saved_rows_have_padded_strides(packs: bool) -> None:
    """A product that only the backward reads is saved with the product's padded strides.

    Gradients match eager, whatever hooks do to saved tensors.
    """
    engine.reset()
    torch.manual_seed(0)
    head, x, wanted = torch.nn.Linear(32, 19), torch.randn(16, 32, requires_grad=True), torch.randint(0, 19, (16,))

    def loss(x: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.cross_entropy(head(x).float(), wanted)

    for hook in (_in_rows, _same):
        hook.__module__ = torch.autograd.graph.__name__  # under hooks that are not torch's own nothing compiled runs
    hooks = torch.autograd.graph.saved_tensors_hooks(_in_rows, _same)
    found = []
    with engine.record() as session:
        for call in (loss, engine.compile(loss)):
            with torch.autocast("cpu", BF16), hooks if packs else contextlib.nullcontext():
                value = call(x)
            found.append((value, *torch.autograd.grad(value, [x, *head.parameters()])))
    torch.testing.assert_close(found[1], found[0], rtol=1e-2, atol=1e-3)  # bfloat16 between operators in eager
    (compiled,) = [c for c in session.compilations if c.lowering is not None]
    assert not compiled.failures
    assert compiled.lowering is not None
    assert "view(addmm_padded, (16, 19), (24, 1), 0)" in compiled.lowering.wrapper_text


def _in_rows(value: torch.Tensor) -> torch.Tensor:
    return value.clone(memory_format=torch.contiguous_format)


def _same(value: torch.Tensor) -> torch.Tensor:
    return value


def test_small_matmuls_are_not_padded() -> None:
    """Where nothing is gained nothing is padded; a vocabulary of odd size is."""
    small = pad_graph(lambda x, w: x @ w.t(), torch.randn(24, 32).to(BF16), torch.randn(19, 32).to(BF16))
    assert sizes(small) == [((24, 32), (32, 19))]
    large = pad_graph(lambda x, w: x @ w.t(), torch.empty(4096, 768, dtype=BF16), torch.empty(50257, 768, dtype=BF16))
    assert sizes(large) == [((4096, 768), (768, 50304))]
