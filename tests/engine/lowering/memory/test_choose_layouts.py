"""Tensors that only kernels read get the layout of the larger part of their operands."""

from __future__ import annotations

from typing import Any

import torch

from engine.kernels.triton.printer import print_triton
from engine.lowering.driver import lower
from engine.lowering.memory.choose_layouts import choose_layouts
from engine.lowering.passes.decompose import decompose
from tests.engine.lowering.trace_aten import trace_to_aten

GRAD = torch.randn(8, 64)
X = torch.randn(8, 64, 24, 24).contiguous(memory_format=torch.channels_last)


def residual_grad(grad: Any, x: Any) -> tuple[Any, ...]:
    """Add the gradient of a mean to a channels-last tensor, and reduce the sum."""
    spread = grad[:, :, None, None].expand(x.shape) / x.shape[2]
    total = spread + x
    centered = total * 2 + x.permute(0, 2, 3, 1).sin().permute(0, 3, 1, 2)
    return total.sum((0, 2, 3)), (centered * x).sum((0, 2, 3))


def chosen_for(function: Any, *args: torch.Tensor) -> dict[str, tuple[int, ...]]:
    """Return the chosen strides by the names of nodes."""
    graph = decompose(trace_to_aten(function, args)).graph
    return {node.name: strides for node, strides in choose_layouts(graph).items()}


def test_a_residual_gradient_is_channels_last() -> None:
    """Eager's layout is that of the broadcast operand; sums over adjacent channels are split."""
    assert (GRAD[:, :, None, None].expand(X.shape) / 2 + X).is_contiguous()
    chosen = chosen_for(residual_grad, GRAD, X)
    assert {chosen["div"], chosen["add"]} == {X.stride()}
    program = lower(trace_to_aten(residual_grad, (GRAD, X)), "cuda:90", print_triton)
    assert any(name.endswith("parts") for name in program.buffers)


def test_a_layout_that_is_seen_stays() -> None:
    """A result of the graph, and an operand of a call that flattens it, keep eager's layout."""

    def seen(grad: Any, x: Any, w: Any) -> tuple[Any, ...]:
        total = grad[:, :, None, None].expand(x.shape) + x
        other = grad[:, :, None, None].expand(x.shape) * x
        return total, other.reshape(8, -1) @ w

    assert chosen_for(seen, GRAD, X, torch.randn(64 * 24 * 24, 4)) == {}


def test_equal_parts_keep_the_layout_of_eager() -> None:
    """One operand of each layout is no reason to differ from eager."""
    assert chosen_for(lambda x, y: ((x + y) * 2).sum((0, 2, 3)), X.contiguous(), X) == {}


def test_rows_are_padded_for_a_product_of_matrices_not_for_batched_ones() -> None:
    """The library is faster with aligned rows of a matrix; a batched product only reads more."""
    x = torch.ones(64, 49, 49, dtype=torch.bfloat16)
    for product, rows in ((lambda a: torch.bmm(a * 2, a), 49), (lambda a: torch.mm((a * 2).view(-1, 49), a[0]), 56)):
        program = lower(trace_to_aten(product, (x,)), "cuda:90", print_triton)
        assert program.buffers["mul"].stride[-2:] == (rows, 1)
