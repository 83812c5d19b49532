"""Fake results have eager's dtypes, and None where eager returns None."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import engine
from engine.graph.fake_tensors.eager_results import RESULT_RULES
from engine.graph.fake_tensors.fake_mode import make_fake_mode
from engine.torch_private.symbolic_shapes import ShapeEnv


@pytest.mark.parametrize(
    "function",
    [
        lambda x: torch.unique(x, return_inverse=True, return_counts=True),
        lambda x: torch.unique_consecutive(x, return_inverse=True, return_counts=True),
        lambda x: torch.unique(x, sorted=False),
    ],
)
def test_indices_of_nothing_are_integers(function):
    """Indices and counts of an empty tensor are int64, as in eager."""
    x = torch.zeros(0)
    wanted = function(x)
    with make_fake_mode(ShapeEnv()) as mode:
        found = function(mode.from_tensor(x))
    pairs = zip(found, wanted, strict=True) if isinstance(wanted, tuple) else [(found, wanted)]
    assert all((a.dtype, a.shape) == (b.dtype, b.shape) for a, b in pairs)
    compiled = engine.compile(function, backend="aot_eager")(x)
    torch.testing.assert_close(compiled, wanted)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.int64, torch.float16])
def test_weighted_counts_have_the_dtype_of_eager(dtype):
    """Counts with weights are float32 or float64, whatever a torch's own fake result says."""
    x, weights = torch.tensor([0, 2, 2]), torch.ones(3, dtype=dtype)
    with make_fake_mode(ShapeEnv()):
        fake = torch.empty(3, dtype=torch.int64)
        found = RESULT_RULES["bincount"]({"self": x, "weights": weights}, fake)
    wanted = torch.bincount(x, weights)
    assert found.dtype == wanted.dtype
    torch.testing.assert_close(engine.compile(torch.bincount)(x, weights), wanted)


def test_attention_without_weights_returns_none():
    """The fast path of attention returns None where weights are not needed."""
    layer = nn.MultiheadAttention(16, 2, batch_first=True).eval()
    x = torch.randn(2, 3, 16)
    with torch.no_grad():
        out, weights = engine.compile(lambda x: layer(x, x, x, need_weights=False), backend="aot_eager")(x)
        torch.testing.assert_close(out, layer(x, x, x, need_weights=False)[0])
    assert weights is None


def test_the_number_of_unique_values_is_unknown():
    """The operator in the gradient of a value that fills has a symbolic size in every torch."""
    with make_fake_mode(ShapeEnv()) as mode:
        values, inverse = torch.ops.aten._unique(mode.from_tensor(torch.tensor([2, 1, 2])), False)
    assert isinstance(values.shape[0], torch.SymInt)
    assert (values.dtype, inverse.dtype) == (torch.int64, torch.int64)


@pytest.mark.parametrize("parameters", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("is_group_norm", [True, False])
def test_norms_of_half_precision_save_what_eager_saves(is_group_norm, parameters):
    """Statistics are float32 where the parameters are; the input's gradient has its dtype."""
    x, weight = torch.randn(2, 8, 4).bfloat16(), torch.ones(8 if is_group_norm else 4, dtype=parameters)

    def results(x, weight):
        if is_group_norm:
            saved = torch.ops.aten.native_group_norm(x, weight, weight, 2, 8, 4, 4, 1e-5)
            back = torch.ops.aten.native_group_norm_backward(
                saved[0], x, *saved[1:], weight, 2, 8, 4, 4, [True, True, True]
            )
        else:
            saved = torch.ops.aten.native_layer_norm(x, [4], weight, weight, 1e-5)
            back = torch.ops.aten.native_layer_norm_backward(
                saved[0], x, [4], *saved[1:], weight, weight, [True, True, True]
            )
        return [t.dtype for t in (*saved, *back)]

    with make_fake_mode(ShapeEnv()) as mode:
        found = results(mode.from_tensor(x), mode.from_tensor(weight))
    assert found == results(x, weight)
