"""Operators without an ATen kernel for a dtype raise eager's error."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import engine
from engine.lowering.missing_kernels import nodes_without_kernel
from tests.engine.lowering.trace_aten import trace_to_aten

COUNTS = torch.arange(16).view(4, 4)
TRUTHS = COUNTS > 3

UNSUPPORTED: dict[str, tuple[Callable[..., Any], torch.Tensor]] = {
    "activation": (F.hardswish, COUNTS),
    "activation that is decomposed": (F.mish, COUNTS),
    "activation of complex numbers": (F.mish, COUNTS.to(torch.complex64)),
    "gradient of an activation": (lambda x: torch.ops.aten.silu_backward(x, x), COUNTS),
    "halves of a dimension": (F.glu, COUNTS),
    "two operands": (lambda x: torch.logaddexp(x, x), COUNTS),
    "two operands of bools": (lambda x: torch.addcmul(x, x, x), TRUTHS),
    "reduction": (lambda x: x.argmax(0), TRUTHS),
    "product": (lambda x: x[0] @ x[1], TRUTHS),
    "window of four elements": (lambda x: F.avg_pool3d(x[None, None].expand(1, 4, 4, 4), 4), COUNTS.half()),
    "padding": (lambda x: F.pad(x, (1, 1), mode="reflect"), TRUTHS),
    "number outside the dtype": (lambda x: torch.full_like(x, 300), COUNTS.to(torch.uint8)),
}


@pytest.mark.parametrize("name", UNSUPPORTED)
def test_an_operator_without_a_kernel_raises_the_error_of_eager(name: str) -> None:
    """The operators after it would be fused with it."""
    function, x = UNSUPPORTED[name]

    def call(x: torch.Tensor) -> torch.Tensor:
        return (function(x).float() + 1).mul(2.5).sin()

    with pytest.raises(RuntimeError) as expected:
        call(x)
    with pytest.raises(type(expected.value)) as raised:
        engine.compile(call)(x)
    assert str(raised.value) == str(expected.value)


def test_operators_with_a_kernel_are_left_to_lowering() -> None:
    """Integers, bools and 16-bit numbers take no ATen call where eager has a kernel."""

    def call(counts: torch.Tensor, truths: torch.Tensor, halves: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return (
            counts * 3 + counts.sum(0),
            torch.where(truths, counts, -1).amax(1),
            truths & (counts > 2),
            F.gelu(halves).softmax(-1).gather(1, counts.clamp(0, 3)),
            F.layer_norm(halves, (4,)).repeat(2, 2),
        )

    inputs = (COUNTS, TRUTHS, COUNTS.half())
    assert nodes_without_kernel(trace_to_aten(call, inputs)) == {}


def test_looking_for_kernels_prints_no_warning(capfd: pytest.CaptureFixture[str]) -> None:
    """The warning for complex numbers, once a process, is neither spent nor printed."""
    x, warns_always = torch.randn(4, dtype=torch.complex64), torch.is_warn_always_enabled()
    torch.set_warn_always(True)
    try:
        compiled = engine.compile(lambda x: x.to(torch.float32) + 1)(x)
    finally:
        torch.set_warn_always(warns_always)
    assert torch.equal(compiled, x.real + 1)
    assert "Casting complex" not in capfd.readouterr().err


def test_operators_on_tensors_of_many_dimensions_are_tried_on_few_elements(monkeypatch: pytest.MonkeyPatch) -> None:
    """An example has the dimensions of the operand, and at most a million elements."""
    sizes: list[int] = []
    zeros = torch.zeros

    def counted(shape: tuple[int, ...], **options: Any) -> torch.Tensor:
        sizes.append(torch.Size(shape).numel())
        return zeros(shape, **options)

    monkeypatch.setattr(torch, "zeros", counted)
    graph = trace_to_aten(lambda x: x.amin(0), (zeros((1,) * 24, dtype=torch.int16),))
    assert nodes_without_kernel(graph) == {}
    assert sizes
    assert max(sizes) <= 1 << 20
