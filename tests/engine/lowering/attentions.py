"""Calls of attention that templates can compute, forward and backward."""

from __future__ import annotations

import functools
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


_SCHEMA = (
    "_scaled_dot_product_efficient_attention_backward(Tensor grad_out_, Tensor query, Tensor key, Tensor value, Tensor attn_bias, Tensor out, "
    "Tensor logsumexp, Tensor philox_seed, Tensor philox_offset, float dropout_p, bool[4] grad_input_mask, bool is_causal=False, *, "
    "float? scale=None) -> (Tensor, Tensor, Tensor, Tensor)"
)


@functools.cache
def _with_mask() -> Any:
    """The operator that a library on a GPU has for gradients of masks, made of plain ones."""
    library = torch.library.Library("tests_attention", "FRAGMENT")
    library.define(_SCHEMA)
    name = _SCHEMA.partition("(")[0]
    library.impl(name, _plainly, "CPU")
    torch.library.register_fake(f"tests_attention::{name}", _alike, lib=library)
    return getattr(torch.ops.tests_attention, name).default, library


def _plainly(g: Any, q: Any, k: Any, v: Any, bias: Any, *rest: Any, scale: float | None = None) -> Any:
    is_causal = rest[-1] is True
    with torch.enable_grad():
        given = [x.detach().contiguous().requires_grad_() for x in (q, k, v, bias)]
        q, k, v, bias = given
        scores = q @ k.transpose(-1, -2) * (scale or q.shape[-1] ** -0.5) + bias
        if is_causal:
            scores = scores.masked_fill(torch.ones(scores.shape[-2:]).tril() == 0, float("-inf"))
        return tuple(x.contiguous() for x in torch.autograd.grad(torch.softmax(scores, -1) @ v, given, g))


def _alike(g: Any, q: Any, k: Any, v: Any, bias: Any, *rest: Any, scale: float | None = None) -> Any:
    return tuple(torch.empty(x.shape, dtype=x.dtype, device=x.device) for x in (q, k, v, bias))


def _of_the_mask(q: Any, k: Any, v: Any, g: Any, b: Any, *, is_causal: bool) -> Any:
    bias = b.expand(*q.shape[:3], k.shape[2])
    scores = q @ k.transpose(-1, -2) * 0.2 + bias
    if is_causal:
        scores = scores.masked_fill(torch.ones(scores.shape[-2:]).tril() == 0, float("-inf"))
    out, logsumexp = torch.softmax(scores, -1) @ v, torch.logsumexp(scores, -1)
    none = torch.zeros((), dtype=torch.int64)
    backward, _ = _with_mask()
    found = backward(g, q, k, v, bias, out, logsumexp, none, none, 0.0, [True] * 4, is_causal, scale=0.2)
    return *found[:3], found[3].sum(0, keepdim=True)


def gradients_of_the_mask(q: Any, k: Any, v: Any, g: Any, b: Any) -> Any:
    """A bias that is the same for the whole batch learns, too."""
    return _of_the_mask(q, k, v, g, b, is_causal=False)


def gradients_of_the_mask_causal(q: Any, k: Any, v: Any, g: Any, b: Any) -> Any:
    """Where rows look back only, what is beyond gets zeros."""
    return _of_the_mask(q, k, v, g, b, is_causal=True)


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
        Case(gradients_of_the_mask, (heads(33), heads(40), heads(40), heads(33), normal(1, 3, 33, 40)), False),
        Case(gradients_of_the_mask_causal, (heads(70), heads(70), heads(70), heads(70), normal(1, 3, 70, 70)), False),
    )
}  # fmt: skip
