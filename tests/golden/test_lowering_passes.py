"""Golden pairs of the passes over ATen graphs before lowering."""

from __future__ import annotations

import math

import torch

from engine.lowering.memory.choose_layouts import choose_layouts
from engine.lowering.passes.bool_to_bias_mask import bool_to_bias_mask
from engine.lowering.passes.decompose import decompose
from engine.lowering.passes.fuse_attention import fuse_attention
from engine.lowering.passes.pad_matmul import pad_matmul
from engine.lowering.passes.separate_conv_bias import separate_conv_bias
from tests.golden.pairs import Pair, graph_lines, shows, to_aten

Tensor = torch.Tensor
BF16 = torch.bfloat16


@shows("engine/lowering/passes/decompose.py")
def test_decompose(pair: Pair) -> None:
    """Replaces an operator without a lowering by operators that have one.

    The parts keep the operator's user line.
    """

    def f(x: Tensor, y: Tensor) -> Tensor:
        return torch.nn.functional.smooth_l1_loss(x, y)

    graph = to_aten(f, torch.ones(8), torch.ones(8))
    before = graph_lines(graph.module)
    pair(f, before=before, after=graph_lines(decompose(graph)))


@shows("engine/lowering/passes/decompose.py", "engine/lowering/decompositions/random_ops.py")
def test_decompose_random(pair: Pair) -> None:
    """With fused_random, replaces a random operator by a seed and numbers from the kernel.

    The kernel itself generates the random numbers. Then dropout fuses with its neighbors.
    """

    def f(x: Tensor) -> Tensor:
        return torch.nn.functional.dropout(x, 0.25)

    graph = to_aten(f, torch.ones(8))
    before = graph_lines(graph.module)
    pair(f, before=before, after=graph_lines(decompose(graph, fused_random=True)))


@shows("engine/lowering/passes/fuse_attention.py", "engine/lowering/passes/match_scores.py")
def test_fuse_attention(pair: Pair) -> None:
    """Replaces hand-written attention by one attention call, which never stores the scores."""

    def attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        scores = torch.bmm(q, k.mT) / math.sqrt(16)
        return torch.bmm(scores.softmax(-1), v)

    module = decompose(to_aten(attention, *(torch.ones(2, 8, 16) for _ in range(3))))
    before = graph_lines(module)
    fuse_attention(module)
    pair(attention, before=before, after=graph_lines(module))


@shows("engine/lowering/passes/fuse_attention.py", "engine/lowering/passes/match_scores.py")
def test_fuse_attention_with_mask(pair: Pair) -> None:
    """Turns a masked fill of the scores into the bias of the attention call.

    A row that sees no key gets NaN, as its softmax is NaN in eager.
    """

    def attention(q: Tensor, k: Tensor, v: Tensor, hidden: Tensor) -> Tensor:
        scores = torch.bmm(q, k.mT) * 0.25
        weights = scores.masked_fill(hidden, float("-inf")).softmax(-1)
        return torch.bmm(weights, v)

    given = (*(torch.ones(2, 8, 16) for _ in range(3)), torch.zeros(8, 8, dtype=torch.bool))
    module = decompose(to_aten(attention, *given))
    before = graph_lines(module)
    fuse_attention(module)
    pair(attention, before=before, after=graph_lines(module))


@shows("engine/lowering/passes/fuse_attention.py")
def test_fuse_attention_refuses(pair: Pair) -> None:
    """Leaves attention unfused where a fused call would differ, and records the reason.

    Here masked scores get a number that ordinary scores can have, too.
    """

    def attention(q: Tensor, k: Tensor, v: Tensor, hidden: Tensor) -> Tensor:
        scores = torch.bmm(q, k.mT) * 0.25
        weights = scores.masked_fill(hidden, -100.0).softmax(-1)
        return torch.bmm(weights, v)

    given = (*(torch.ones(2, 8, 16) for _ in range(3)), torch.zeros(8, 8, dtype=torch.bool))
    module = decompose(to_aten(attention, *given))
    before = graph_lines(module)
    (decision,) = fuse_attention(module)
    pair(attention, before=before, after=["the same graph, with this reason:", decision.reason])


@shows("engine/lowering/passes/bool_to_bias_mask.py")
def test_bool_to_bias_mask(pair: Pair) -> None:
    """Converts a bool mask shared by several attention calls into an additive bias once.

    Otherwise each call would convert it.
    """

    def two_layers(q: Tensor, k: Tensor, v: Tensor, visible: Tensor) -> Tensor:
        attention = torch.nn.functional.scaled_dot_product_attention
        return attention(attention(q, k, v, visible), k, v, visible)

    given = (*(torch.ones(2, 3, 8, 16) for _ in range(3)), torch.ones(8, 8, dtype=torch.bool))
    module = decompose(to_aten(two_layers, *given))
    before = graph_lines(module)
    pair(two_layers, before=before, after=graph_lines(bool_to_bias_mask(module)))


@shows("engine/lowering/passes/separate_conv_bias.py")
def test_separate_conv_bias(pair: Pair) -> None:
    """Adds the bias of a convolution by an addition, which fuses with the activation.

    On a GPU, ATen would add it in a kernel of its own.
    """

    def block(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        return torch.nn.functional.conv2d(x, weight, bias).relu()

    module = decompose(to_aten(block, torch.ones(2, 3, 8, 8), torch.ones(4, 3, 3, 3), torch.ones(4)))
    before = graph_lines(module)
    pair(block, before=before, after=graph_lines(separate_conv_bias(module)))


@shows("engine/lowering/memory/choose_layouts.py")
def test_choose_layouts(pair: Pair) -> None:
    """Gives a tensor that only kernels read the layout of most of its operands.

    Eager lays out the quotient and the sum as the broadcast operand; the other operand is channels-last.
    """

    def residual_grad(grad: Tensor, x: Tensor) -> Tensor:
        total = grad[:, :, None, None].expand(x.shape) / 16 + x
        return (total * x).sum((0, 2, 3))

    x = torch.ones(2, 8, 4, 4).contiguous(memory_format=torch.channels_last)
    module = decompose(to_aten(residual_grad, torch.ones(2, 8), x))
    chosen = [
        f"{node.name}: strides {tuple(node.meta['val'].stride())} -> {strides}"
        for node, strides in choose_layouts(module.graph).items()
    ]
    pair(residual_grad, before=graph_lines(module), after=chosen)


@shows("engine/lowering/passes/pad_matmul.py")
def test_pad_matmul(pair: Pair) -> None:
    """Pads the operands of a matmul with zeros to sizes that are multiples of 16 bytes.

    It pads only if the faster kernel saves more time than the padding costs. The result is sliced, so nothing
    else sees the zeros.
    """

    def vocabulary_head(x: Tensor, w: Tensor) -> Tensor:
        return x @ w.t()

    module = decompose(to_aten(vocabulary_head, torch.ones(8192, 1024, dtype=BF16), torch.ones(4099, 1024, dtype=BF16)))
    before = graph_lines(module)
    pair(vocabulary_head, before=before, after=graph_lines(pad_matmul(module)))
