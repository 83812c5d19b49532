"""Calls of attention that templates can compute, forward and backward."""

from __future__ import annotations

from typing import Any

import torch

from tests.engine.lowering.cases import BF16, F16, Case, Make, coins, normal

sdpa = torch.nn.functional.scaled_dot_product_attention
aten = torch.ops.aten


def _whole(name: str) -> Any:
    from engine.graph.composites import operator

    return operator(name)


def heads(length: int, *, batch: int = 2, count: int = 3, width: int = 24, dtype: torch.dtype = torch.float32) -> Make:
    """Queries, keys or values."""
    return normal(batch, count, length, width, dtype=dtype)


def causal(q: Any, k: Any, v: Any) -> Any:
    """Each row looks back only."""
    return _whole("attention")(q, k, v, None, 0.0, True)


def crossed(q: Any, k: Any, v: Any) -> Any:
    """More keys than queries, wider values than keys, a scale of one's own."""
    return _whole("attention")(q, k, v, scale=0.3)


def crossed_and_causal(q: Any, k: Any, v: Any) -> Any:
    """The diagonal begins in the first corner."""
    return _whole("attention")(q, k, v, None, 0.0, True)


def masked(q: Any, k: Any, v: Any, m: Any) -> Any:
    """A mask for all heads, with a row that may look at nothing."""
    m = m.clone()
    m[3], m[4, 0] = False, True
    return _whole("attention")(q, k, v, m)


def biased(q: Any, k: Any, v: Any, b: Any) -> Any:
    """A bias for each head, the same for the whole batch, seen transposed."""
    return _whole("attention")(q, k, v, b.transpose(-1, -2))


def keys_shared(q: Any, k: Any, v: Any) -> Any:
    """Several heads look at the same keys."""
    return _whole("attention")(q, k, v, None, 0.0, True, enable_gqa=True)


def heads_last(q: Any, k: Any, v: Any) -> Any:
    """Heads lie beside each other, as a projection leaves them."""
    return _whole("attention")(*(x.transpose(1, 2) for x in (q, k, v)), None, 0.0, True)


def gradients(q: Any, k: Any, v: Any, g: Any) -> Any:
    """All gradients, from results computed by a template, too."""
    out, logsumexp = _whole("attention_with_backward")(q, k, v, None, True, None)
    return out, _whole("attention_backward")(g, q, k, v, out, logsumexp, None, True, None)


def gradients_biased(q: Any, k: Any, v: Any, g: Any, b: Any) -> Any:
    """The same with a bias and no diagonal."""
    b = b.clone()
    b[:, :, 5], b[0, 0, 2, :4] = 0.0, float("-inf")
    out, logsumexp = _whole("attention_with_backward")(q, k, v, b, False, 0.2)
    return _whole("attention_backward")(g, q, k, v, out, logsumexp, b, False, 0.2)


ATTENTIONS: dict[str, Case] = {
    made.function.__name__: made
    for made in (
        Case(causal, (heads(70), heads(70), heads(70)), False),
        Case(crossed, (heads(20), heads(50), heads(50, width=40)), False),
        Case(crossed_and_causal, (heads(20, dtype=F16), heads(37, dtype=F16), heads(37, dtype=F16)), False),
        Case(masked, (heads(33), heads(40), heads(40), coins(33, 40)), False),
        Case(biased, (heads(33), heads(40), heads(40), normal(1, 3, 40, 33)), False),
        Case(keys_shared, (heads(40, count=6, dtype=BF16), heads(40, count=2, dtype=BF16), heads(40, count=2, dtype=BF16)), False),
        Case(heads_last, (normal(2, 35, 3, 16, dtype=BF16), normal(2, 35, 3, 16, dtype=BF16), normal(2, 35, 3, 16, dtype=BF16)), False),
        Case(gradients, (heads(70), heads(70), heads(70), heads(70)), False),
        Case(gradients_biased, (heads(33), heads(40), heads(40), heads(33), normal(2, 3, 33, 40)), False),
    )
}  # fmt: skip
