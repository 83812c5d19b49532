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
    """Write the pair of a decomposition: ATen graph before and after it; parts are named without the operator's name."""

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
    """The gradient of pairwise distances: each pair's difference, divided by its distance, in the direction of the gradient."""
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
    """The gradients of a weight that is a direction divided by its norm and multiplied by a length."""
    show(
        lambda grad, direction, length, norms: aten._weight_norm_interface_backward(grad, direction, length, norms, 0),
        *(torch.ones(4, 3), torch.ones(4, 3), torch.ones(4, 1), torch.ones(4, 1)),
    )


@shows(MISSING)
def test_diag_embed(show: Show) -> None:
    """Puts a vector on the diagonal of a matrix: each place compares its row with its column."""
    show(lambda x: aten.diag_embed(x, 0), torch.ones(3))


@shows(MISSING)
def test_fake_quantize(show: Show) -> None:
    """Rounds to a grid; the second result is the mask of the values within the range of the grid."""
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
    """One scale and one zero point for each index of a dimension: both get dimensions of size 1 for the others."""
    show(
        lambda x, scale, zero: aten.fake_quantize_per_channel_affine_cachemask(x, scale, zero, 0, -128, 127),
        *(torch.ones(2, 4), torch.ones(2), torch.zeros(2, dtype=torch.int32)),
    )


@shows(MISSING)
def test_foreach(show: Show) -> None:
    """An operator on lists becomes an operator for each tensor, which fuse with their neighbors."""
    show(lambda a, b: aten._foreach_mul([a, b], 2.0), torch.ones(4), torch.ones(3))


@shows(MISSING)
def test_foreach_norm(show: Show) -> None:
    """The norms of a list of tensors are one norm each."""
    show(lambda a, b: aten._foreach_norm([a, b]), torch.ones(4), torch.ones(3))


@shows(MISSING)
def test_check_and_unscale(show: Show) -> None:
    """The gradient scaler's first half: multiplies gradients by a factor, and notes whether one has an inf or a NaN."""
    operator = aten._amp_foreach_non_finite_check_and_unscale.default
    show(lambda grad, found, factor: operator([grad], found, factor), torch.ones(4), torch.zeros(()), torch.ones(()))


@shows(MISSING)
def test_update_scale(show: Show) -> None:
    """The gradient scaler's second half: the next scale is smaller after an inf or a NaN, and larger after enough good steps."""
    show(
        lambda scale, steps, found: aten._amp_update_scale(scale, steps, found, 2.0, 0.5, 2000),
        *(torch.ones(()), torch.zeros((), dtype=torch.int32), torch.zeros(())),
    )


@shows(INTERPOLATION)
def test_upsample_nearest_backward(show: Show) -> None:
    """The gradient of interpolation: each output element adds its gradient to the input elements that it was read from."""
    show(lambda grad: aten.upsample_nearest1d_backward(grad, [4], [1, 1, 2]), torch.ones(1, 1, 4))


@shows(INTERPOLATION)
def test_upsample_antialiased(show: Show) -> None:
    """Each output element is a weighted sum of the input elements below it: the taps and their weights are computed from its position."""
    show(lambda x: aten._upsample_bilinear2d_aa(x, [2, 2], False), torch.ones(1, 1, 4, 4))


@shows(INTERPOLATION)
def test_replication_pad_backward(show: Show) -> None:
    """The gradient of padding by the border: the padding's gradients are added to the border's."""
    show(lambda grad, x: aten.replication_pad1d_backward(grad, x, [1, 1]), torch.ones(1, 2, 5), torch.ones(1, 2, 3))


@shows(INTERPOLATION)
def test_adaptive_avg_pool_backward(show: Show) -> None:
    """The gradient of adaptive average pooling: each input element takes its share of the windows that it lies in."""
    show(lambda grad, x: (aten._adaptive_avg_pool2d_backward(grad, x),), torch.ones(1, 1, 2, 2), torch.ones(1, 1, 4, 4))


@shows(RANDOM)
def test_normal(show: Show) -> None:
    """With fused_random, normal numbers are computed from uniform ones, which the kernel draws."""
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
