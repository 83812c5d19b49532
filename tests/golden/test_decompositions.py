"""Golden pairs of the decompositions that torch lacks."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest
import torch

from engine.ir.aot.aot_graph import AotGraph
from engine.lowering.decompositions.missing_in_torch import MISSING_DECOMPOSITIONS
from engine.lowering.passes.decompose import decompose
from tests.engine.lowering.trace_aten import trace_to_aten
from tests.golden.pairs import Pair, graph_lines, repository_root, shows

Tensor = torch.Tensor
Show = Callable[..., None]
aten = torch.ops.aten
MISSING = "engine/lowering/decompositions/missing_in_torch.py"
INTERPOLATION = "engine/lowering/decompositions/interpolation.py"
RANDOM = "engine/lowering/decompositions/random_ops.py"


@pytest.fixture
def show(pair: Pair) -> Show:
    """Write the pair of a decomposition: the ATen graph before and after it.

    Parts are named without the operator's name.
    """

    def write(function: Callable[..., Any], *args: Any, **options: Any) -> None:
        graph: AotGraph = trace_to_aten(function, args)
        names = function.__code__.co_varnames
        for node, name in zip([n for n in graph.module.graph.nodes if n.op == "placeholder"], names, strict=False):
            node._rename(name)
        before = graph_lines(graph.module)
        operators = [n.name for n in graph.module.graph.nodes if n.op == "call_function"]
        after = "\n".join(graph_lines(decompose(graph, **options)))
        pair(before=before, after=re.sub(rf"\b({'|'.join(operators)})_(?=[a-z_])", "", after))

    return write


@shows(MISSING)
def test_cdist_backward(show: Show) -> None:
    """Divides the difference of each pair by its distance, times the gradient.

    This is the gradient of pairwise distances.
    """
    show(
        lambda grad, a, b, distance: aten._cdist_backward(grad, a, b, 2.0, distance),
        torch.ones(4, 5),
        torch.ones(4, 3),
        torch.ones(5, 3),
        torch.ones(4, 5),
    )


@shows(MISSING)
def test_pdist(show: Show) -> None:
    """The distances of all pairs of rows: both rows of each pair are gathered and subtracted."""
    show(lambda points: aten._pdist_forward(points, 2.0), torch.ones(4, 3))


@shows(MISSING)
def test_weight_norm_backward(show: Show) -> None:
    """Computes the gradients of weight normalization.

    The weight is a direction divided by its norm and multiplied by a length.
    """
    show(
        lambda grad, direction, length, norms: aten._weight_norm_interface_backward(grad, direction, length, norms, 0),
        *(torch.ones(4, 3), torch.ones(4, 3), torch.ones(4, 1), torch.ones(4, 1)),
    )


@shows(MISSING)
def test_eye(show: Show) -> None:
    """Compares the numbers of rows and columns, in an integer type that ATen counts in."""
    show(lambda x: torch.eye(3) + x, torch.ones(3, 3))


@shows(MISSING)
def test_diag_embed(show: Show) -> None:
    """Puts a vector on the diagonal of a matrix: each place compares its row with its column."""
    show(lambda x: aten.diag_embed(x, 0), torch.ones(3))


@shows(MISSING)
def test_fake_quantize(show: Show) -> None:
    """Rounds to a grid and returns the mask of the values within its range.

    The mask is the second result.
    """
    show(lambda x: aten.fake_quantize_per_tensor_affine_cachemask(x, 0.1, 0, -128, 127), torch.ones(4))


@shows(MISSING)
def test_fake_quantize_with_tensors(show: Show) -> None:
    """With its parameters as tensors, the same is chosen by a tensor that enables it."""
    operator = aten._fake_quantize_per_tensor_affine_cachemask_tensor_qparams
    show(
        lambda x, scale, zero, enabled: operator(x, scale, zero, enabled, -128, 127),
        *(torch.ones(4), torch.ones(1), torch.zeros(1, dtype=torch.int32), torch.ones(1, dtype=torch.int64)),
    )


@shows(MISSING)
def test_fake_quantize_per_channel(show: Show) -> None:
    """Uses one scale and one zero point for each index of a dimension.

    Both get dimensions of size 1 for the other dimensions.
    """
    show(
        lambda x, scale, zero: aten.fake_quantize_per_channel_affine_cachemask(x, scale, zero, 0, -128, 127),
        *(torch.ones(2, 4), torch.ones(2), torch.zeros(2, dtype=torch.int32)),
    )


@shows(MISSING)
def test_binary_cross_entropy_on_cpu(show: Show) -> None:
    """Checks on a CPU that both operands are probabilities, as eager does."""
    show(lambda x, target: aten.binary_cross_entropy(x, target, reduction=2), torch.ones(4), torch.ones(4), is_cpu=True)


@shows(MISSING)
def test_foreach(show: Show) -> None:
    """Replaces an operator on lists by one operator per tensor.

    These operators fuse with their neighbors.
    """
    show(lambda a, b: aten._foreach_mul([a, b], 2.0), torch.ones(4), torch.ones(3))


@shows(MISSING)
def test_foreach_norm(show: Show) -> None:
    """The norms of a list of tensors are one norm each."""
    show(lambda a, b: aten._foreach_norm([a, b]), torch.ones(4), torch.ones(3))


@shows(MISSING)
def test_check_and_unscale(show: Show) -> None:
    """Multiplies gradients by a factor and records whether one has an inf or a NaN.

    This is the first half of the gradient scaler.
    """
    operator = aten._amp_foreach_non_finite_check_and_unscale.default
    show(lambda grad, found, factor: operator([grad], found, factor), torch.ones(4), torch.zeros(()), torch.ones(()))


@shows(MISSING)
def test_update_scale(show: Show) -> None:
    """Lowers the scale after an inf or a NaN and raises it after enough good steps.

    This is the second half of the gradient scaler.
    """
    show(
        lambda scale, steps, found: aten._amp_update_scale(scale, steps, found, 2.0, 0.5, 2000),
        *(torch.ones(()), torch.zeros((), dtype=torch.int32), torch.zeros(())),
    )


@shows(INTERPOLATION)
def test_upsample_nearest_backward(show: Show) -> None:
    """Adds the gradients of each block of output elements that repeats an input element.

    Sides that are no power of two are scattered, as for other interpolation.
    """
    show(lambda grad: aten.upsample_nearest1d_backward(grad, [4], [1, 1, 2]), torch.ones(1, 1, 4))


@shows(INTERPOLATION)
def test_upsample_linear(show: Show) -> None:
    """Weights the two neighbors of each output element."""
    show(lambda x: aten.upsample_linear1d(x, [4], True), torch.ones(1, 1, 2))


@shows(INTERPOLATION)
def test_upsample_linear_backward(show: Show) -> None:
    """Sums, for each input element, the gradients of the output elements that read it.

    This is the gradient of linear interpolation.
    """
    show(lambda grad: aten.upsample_linear1d_backward(grad, [4], [1, 1, 2], True), torch.ones(1, 1, 4))


@shows(INTERPOLATION)
def test_upsample_bicubic_backward(show: Show) -> None:
    """Adds the gradient of each output element to the input elements that it was read from."""
    show(
        lambda grad: aten.upsample_bicubic2d_backward(grad, [2, 2], [1, 1, 3, 3], False),
        torch.ones(1, 1, 2, 2),
    )


@shows(INTERPOLATION)
def test_upsample_antialiased(show: Show) -> None:
    """Computes each output element as a weighted sum of nearby input elements.

    The taps and their weights are computed from the position of the output element.
    """
    show(lambda x: aten._upsample_bilinear2d_aa(x, [2, 2], False), torch.ones(1, 1, 4, 4))


@shows(MISSING)
def test_batch_norm(show: Show) -> None:
    """Normalizes with the statistics of the batch, which it saves.

    On the CPU a half-precision input is converted first if its parameters are float32, as under autocast.
    """
    show(
        lambda x, weight, mean, var: aten._native_batch_norm_legit_functional(
            x, weight, None, mean, var, True, 0.1, 1e-5
        )[:3],
        torch.ones(2, 3),
        *(torch.ones(3) for _ in range(3)),
    )


@shows(INTERPOLATION)
def test_replication_pad_backward(show: Show) -> None:
    """Adds the gradients of the padding to the gradients of the border.

    This is the gradient of replication padding.
    """
    show(lambda grad, x: aten.replication_pad1d_backward(grad, x, [1, 1]), torch.ones(1, 2, 5), torch.ones(1, 2, 3))


@shows(RANDOM)
def test_normal(show: Show) -> None:
    """With fused_random, computes normal numbers from uniform ones.

    The kernel generates the uniform numbers.
    """
    show(lambda x: torch.randn_like(x) + x, torch.ones(8), fused_random=True)


@shows(RANDOM)
def test_randint(show: Show) -> None:
    """With fused_random, integers are computed from random bits, which the kernel draws."""
    show(lambda x: torch.randint(0, 10, (8,)) + x, torch.ones(8, dtype=torch.int64), fused_random=True)


def test_every_missing_decomposition_has_a_pair() -> None:
    """For each function that decomposes operators, the file of one of its operators exists."""
    folder = repository_root() / "tests" / "expected" / "decompositions"
    known = "".join(path.read_text(encoding="utf-8") for path in folder.glob("*.txt"))
    shown = {
        function.__qualname__
        for op, function in MISSING_DECOMPOSITIONS.items()
        if f"= {str(op).removesuffix('.default')}(" in known
    }
    assert {f.__qualname__ for f in MISSING_DECOMPOSITIONS.values()} <= shown
