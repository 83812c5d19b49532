"""One kernel converts a mask that several attentions share, with the same meaning.

The boolean mask becomes a bias.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F

from engine.graph.device_dependent_composites import composite_op
from engine.kernels.triton.printer import print_triton
from engine.lowering.driver import lower
from engine.lowering.passes.bool_to_bias_mask import bool_to_bias_mask
from engine.lowering.passes.decompose import decompose
from tests.engine.lowering.trace_aten import trace_to_aten


def two_attentions(x: torch.Tensor, mask: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """Two attentions under one mask, and one under its opposite."""
    attention = composite_op("attention")
    first = attention(x, x, x, mask)
    return attention(first, x, x, mask), attention(x, x, x, mask.logical_not()), attention(x, x, x, None, 0.0, True)


def two_attentions_eager(x: torch.Tensor, mask: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """The same in eager."""
    attention = F.scaled_dot_product_attention
    first = attention(x, x, x, mask)
    return attention(first, x, x, mask), attention(x, x, x, mask.logical_not()), attention(x, x, x, is_causal=True)


def test_each_mask_is_converted_once() -> None:
    """Each mask is stored once in the attention's dtype, and results match eager.

    This includes rows where every position is masked.
    """
    torch.manual_seed(0)
    x, mask = torch.randn(2, 3, 5, 8), torch.rand(1, 1, 5, 5) > 0.4
    mask[..., 2, :] = False
    mask[..., 3, :] = True
    graph = trace_to_aten(two_attentions, (x, mask))
    for made, wanted in zip(bool_to_bias_mask(decompose(graph))(x, mask), two_attentions_eager(x, mask), strict=True):
        torch.testing.assert_close(made, wanted, equal_nan=True)
    program = lower(graph, "cuda:90", print_triton)
    numbers = [b for name, b in program.buffers.items() if "numbers" in name]
    assert [(b.dtype, b.shape) for b in numbers] == [(torch.float32, (1, 1, 5, 5))] * 2
