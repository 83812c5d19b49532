"""einops is captured whole at every size.

It finds its backend, parses its patterns behind caches and computes sizes from sizes.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from einops import einsum, pack, rearrange, reduce, repeat, unpack
from einops.layers.torch import Rearrange, Reduce
from torch import nn

import engine

FUNCTIONS: dict[str, Callable[[torch.Tensor], Any]] = {
    "rearrange": lambda x: rearrange(x, "b c (h p) (w q) -> b (h w) (c p q)", p=2, q=2),
    "reduce": lambda x: reduce(x, "b c (h 2) w -> b c h", "mean"),
    "repeat": lambda x: repeat(x, "b c h w -> b c (h 2) w k", k=3),
    "einsum": lambda x: einsum(x, x, "b c h w, b c h v -> b w v"),
    "pack": lambda x: unpack(*pack([x, x.mean(-1, keepdim=True)], "b c h *"), "b c h *"),
    "lists": lambda x: rearrange([x, x + 1], "n b c h w -> b n c h w"),
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_functions_are_captured_at_all_sizes(name: str) -> None:
    """One graph for the first size and one for all others, equal to plain PyTorch."""
    engine.reset()
    function = FUNCTIONS[name]
    with engine.record() as session:
        compiled = engine.compile(function, backend="eager", fullgraph=True)
        for size in (4, 6, 8, 10):
            x = torch.randn(2, 3, size, size)
            torch.testing.assert_close(compiled(x), function(x), rtol=0, atol=0)
    assert len(session.compilations) == 2


def test_layers_are_captured() -> None:
    """Layers hold parsed patterns; several in one module make one graph with eager gradients.

    The gradients are those of plain PyTorch.
    """
    engine.reset()
    torch.manual_seed(0)
    patches = Rearrange("b c (h p) (w q) -> b (h w) (p q c)", p=4, q=4)
    module = nn.Sequential(patches, nn.LayerNorm(48), nn.Linear(48, 8), Reduce("b n d -> b d", "max"))
    x = torch.randn(2, 3, 8, 8, requires_grad=True)
    (expected,) = torch.autograd.grad(module(x).sum(), x)
    with engine.record() as session:
        (found,) = torch.autograd.grad(engine.compile(module, backend="eager", fullgraph=True)(x).sum(), x)
    torch.testing.assert_close(found, expected, rtol=0, atol=0)
    assert len(session.compilations) == 1
