"""Attention under autocast casts its operands and its mask, as torch's function does."""

from __future__ import annotations

import torch
import torch.nn.functional as F

import engine


def test_a_float32_mask_is_cast() -> None:
    """Queries of lower precision with a float32 mask give eager's result and dtype."""
    q = torch.randn(2, 2, 8, 16)
    mask = torch.randn(2, 1, 1, 8)

    def attend(q: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        return F.scaled_dot_product_attention(q, q.bfloat16(), q, mask)

    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        wanted = attend(q, mask)
        found = engine.compile(attend, backend="aot_eager")(q, mask)
    assert found.dtype == wanted.dtype
    torch.testing.assert_close(found, wanted)


def test_the_graph_casts_the_mask() -> None:
    """The cast stands in the graph, by position and by name: GPU libraries do not cast."""
    q = torch.randn(2, 2, 8, 16, dtype=torch.bfloat16)
    mask = torch.randn(2, 1, 1, 8)

    def attend(q: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        return F.scaled_dot_product_attention(q, q, q, mask) + F.scaled_dot_product_attention(q, q, q, attn_mask=mask)

    with engine.record() as session, torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        engine.compile(attend, backend="aot_eager")(q, mask)
    (graph,) = [g for g in session.compilations[0].graphs if g.stage == "aten"]
    casts = {n.id for n in graph.nodes if n.target == "aten._to_copy"}
    calls = [n for n in graph.nodes if n.target == "engine.attention"]
    assert len(calls) == 2
    assert all(casts & set(n.inputs) for n in calls)
