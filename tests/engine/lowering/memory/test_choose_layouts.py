"""Tensors that only kernels read get the layout of the larger part of their operands."""

from __future__ import annotations

import math
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


def unshuffled_gradient(grad: Any, x: Any, w: Any) -> tuple[Any, ...]:
    """The backward of a convolution before a pixel shuffle; eager's gradient is contiguous."""
    batch, width, height, wide = grad.shape
    split = (grad * 2).view(batch, width, height // 2, 2, wide // 2, 2)
    grad = split.permute(0, 1, 3, 5, 2, 4).reshape(batch, 4 * width, height // 2, wide // 2)
    done = torch.ops.aten.convolution_backward(
        grad, x, w, None, [1, 1], [1, 1], [1, 1], False, [0, 0], 1, [True, True, False]
    )
    return *done[:2], grad.sum((0, 2, 3))


def test_a_convolution_in_channels_last_gets_its_gradient_so() -> None:
    """The copy that moves space to depth writes channels last in many programs."""
    last = {"memory_format": torch.channels_last}
    x, w = torch.randn(8, 64, 64, 64).contiguous(**last), torch.randn(256, 64, 3, 3).contiguous(**last)
    grad = torch.randn(8, 64, 128, 128).contiguous(**last)
    (strides,) = chosen_for(unshuffled_gradient, grad, x, w).values()
    assert strides == (1048576, 4, 2, 1, 16384, 256)
    program = lower(trace_to_aten(unshuffled_gradient, (grad, x, w)), "cuda:90", print_triton)
    (writer,) = (k for k in program.kernels if any(a.is_written and a.buffer == "clone" for a in k.args))
    assert math.prod(writer.grid) > 1000
    contiguous = chosen_for(unshuffled_gradient, grad, x.contiguous(), w.contiguous())
    assert contiguous == {}


def test_a_convolution_gets_its_input_in_the_order_of_its_weight() -> None:
    """Its result has this order in eager too; an input that decides does not change."""

    def reads(x: Any, w: Any) -> Any:
        return torch.conv2d((x * 2).relu(), w)

    x, w = X.contiguous(), torch.randn(8, 64, 3, 3)
    assert chosen_for(reads, x, w.contiguous(memory_format=torch.channels_last)).keys() == {"relu"}
    assert chosen_for(reads, x, w) == {}
    assert chosen_for(reads, x.double(), w.double().contiguous(memory_format=torch.channels_last)) == {}


def test_rows_are_padded_for_a_product_of_matrices_not_for_batched_ones() -> None:
    """The library is faster with aligned rows of a matrix; a batched product only reads more."""
    x = torch.ones(64, 49, 49, dtype=torch.bfloat16)
    for product, rows in ((lambda a: torch.bmm(a * 2, a), 49), (lambda a: torch.mm((a * 2).view(-1, 49), a[0]), 56)):
        program = lower(trace_to_aten(product, (x,)), "cuda:90", print_triton)
        assert program.buffers["mul"].stride[-2:] == (rows, 1)


def test_a_gradient_permuted_before_a_convolution_is_channels_last() -> None:
    """A convolution reads a permuted value in the order of the permuted dimensions."""

    def rows_first(grad: Any, x: Any, w: Any) -> tuple[Any, ...]:
        images = (grad * 2).permute(1, 0, 2, 3)
        done = torch.ops.aten.convolution_backward(
            images, x, w, None, [1, 1], [1, 1], [1, 1], False, [0, 0], 1, [True, True, False]
        )
        return done[:2]

    last = {"memory_format": torch.channels_last}
    x, w = torch.randn(8, 64, 16, 16).contiguous(**last), torch.randn(32, 64, 3, 3).contiguous(**last)
    grad = torch.randn(32, 8, 16, 16)
    assert chosen_for(rows_first, grad, x, w) == {"mul": (1, 8192, 512, 32)}


def test_each_of_several_results_has_eagers_layout() -> None:
    """A pool's maxima and normalized values stay in channels last for the next convolution."""

    def pooled(x: Any, w: Any) -> Any:
        largest, at = torch.nn.functional.max_pool2d(x * 2, 3, 2, 1, return_indices=True)
        normed = torch.nn.functional.group_norm(largest + at % 2, 4)
        few = torch.nn.functional.adaptive_max_pool2d(normed, 4, return_indices=True)
        return torch.conv2d(normed.relu(), w), *few

    args = torch.randn(2, 64, 24, 24).contiguous(memory_format=torch.channels_last), torch.randn(8, 64, 1, 1)
    program = lower(trace_to_aten(pooled, args), "cuda:90", print_triton)
    images = [b for b in program.buffers.values() if len(b.shape) == 4 and b.kind in ("intermediate", "output")]
    assert len(images) >= 5
    assert all(b.stride[1] == 1 for b in images), [(b.name, b.stride) for b in images]
