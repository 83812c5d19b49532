"""Calls of attention that templates can compute, forward and backward."""

from __future__ import annotations

import functools
from typing import Any

import torch

from tests.engine.lowering.op_cases import BF16, F16, Case, MakeTensor, normal, random_bools

sdpa = torch.nn.functional.scaled_dot_product_attention
aten = torch.ops.aten


def _integer_valued(name: str) -> Any:
    from engine.graph.device_dependent_composites import composite_op

    return composite_op(name)


def head_tensors(
    length: int, *, batch: int = 2, count: int = 3, width: int = 24, dtype: torch.dtype = torch.float32
) -> MakeTensor:
    """Queries, keys or values."""
    return normal(batch, count, length, width, dtype=dtype)


def causal(q: Any, k: Any, v: Any) -> Any:
    """Each row looks back only."""
    return _integer_valued("attention")(q, k, v, None, 0.0, True)


def cross_attention(q: Any, k: Any, v: Any) -> Any:
    """More keys than queries, wider values than keys, a scale of one's own."""
    return _integer_valued("attention")(q, k, v, scale=0.3)


def causal_cross_attention(q: Any, k: Any, v: Any) -> Any:
    """The diagonal begins in the first corner."""
    return _integer_valued("attention")(q, k, v, None, 0.0, True)


def masked(q: Any, k: Any, v: Any, m: Any) -> Any:
    """A mask for all heads, with a row that may look at nothing."""
    m = m.clone()
    m[3], m[4, 0] = False, True
    return _integer_valued("attention")(q, k, v, m)


def biased(q: Any, k: Any, v: Any, b: Any) -> Any:
    """A bias for each head, the same for the whole batch, seen transposed."""
    return _integer_valued("attention")(q, k, v, b.transpose(-1, -2))


def grouped_query_attention(q: Any, k: Any, v: Any) -> Any:
    """Several heads look at the same keys."""
    return _integer_valued("attention")(q, k, v, None, 0.0, True, enable_gqa=True)


def heads_in_last_dim(q: Any, k: Any, v: Any) -> Any:
    """Heads lie beside each other, as a projection leaves them."""
    return _integer_valued("attention")(*(x.transpose(1, 2) for x in (q, k, v)), None, 0.0, True)


def attention_backward(q: Any, k: Any, v: Any, g: Any) -> Any:
    """All gradients, from results computed by a template, too."""
    out, logsumexp = _integer_valued("attention_with_backward")(q, k, v, None, True, None)
    return out, _integer_valued("attention_backward")(g, q, k, v, out, logsumexp, None, True, None)


def attention_backward_with_bias(q: Any, k: Any, v: Any, g: Any, b: Any) -> Any:
    """The same with a bias and no diagonal."""
    b = b.clone()
    b[:, :, 5], b[0, 0, 2, :4] = 0.0, float("-inf")
    out, logsumexp = _integer_valued("attention_with_backward")(q, k, v, b, False, 0.2)
    return _integer_valued("attention_backward")(g, q, k, v, out, logsumexp, b, False, 0.2)


_SCHEMA = (
    "_scaled_dot_product_efficient_attention_backward(Tensor grad_out_, Tensor query, Tensor key, Tensor value, Tensor attn_bias, Tensor out, "
    "Tensor logsumexp, Tensor philox_seed, Tensor philox_offset, float dropout_p, bool[4] grad_input_mask, bool is_causal=False, *, "
    "float? scale=None) -> (Tensor, Tensor, Tensor, Tensor)"
)


@functools.cache
def _mask_gradient_op() -> Any:
    """The operator that a library on a GPU has for gradients of masks, made of plain ones."""
    library = torch.library.Library("tests_attention", "FRAGMENT")
    library.define(_SCHEMA)
    name = _SCHEMA.partition("(")[0]
    for key in ("CPU", "CUDA"):
        library.impl(name, _eager_backward, key)
    torch.library.register_fake(f"tests_attention::{name}", _fake_backward, lib=library)
    return getattr(torch.ops.tests_attention, name).default, library


def _eager_backward(g: Any, q: Any, k: Any, v: Any, bias: Any, *rest: Any, scale: float | None = None) -> Any:
    is_causal = rest[-1] is True
    with torch.enable_grad():
        given = [x.detach().contiguous().requires_grad_() for x in (q, k, v, bias)]
        q, k, v, bias = given
        scores = q @ k.transpose(-1, -2) * (scale or q.shape[-1] ** -0.5) + bias
        if is_causal:
            scores = scores.masked_fill(torch.ones(scores.shape[-2:], device=scores.device).tril() == 0, float("-inf"))
        return tuple(x.contiguous() for x in torch.autograd.grad(torch.softmax(scores, -1) @ v, given, g))


def _fake_backward(g: Any, q: Any, k: Any, v: Any, bias: Any, *rest: Any, scale: float | None = None) -> Any:
    return tuple(torch.empty(x.shape, dtype=x.dtype, device=x.device) for x in (q, k, v, bias))


def _backward_with_mask_gradient(q: Any, k: Any, v: Any, g: Any, b: Any, *, is_causal: bool) -> Any:
    bias = b.expand(*q.shape[:3], k.shape[2])
    scores = q @ k.transpose(-1, -2) * 0.2 + bias
    if is_causal:
        scores = scores.masked_fill(torch.ones(scores.shape[-2:], device=scores.device).tril() == 0, float("-inf"))
    out, logsumexp = torch.softmax(scores, -1) @ v, torch.logsumexp(scores, -1)
    none = torch.zeros((), dtype=torch.int64)
    backward, _ = _mask_gradient_op()
    found = backward(g, q, k, v, bias, out, logsumexp, none, none, 0.0, [True] * 4, is_causal, scale=0.2)
    return *found[:3], found[3].sum(0, keepdim=True)


def mask_gradient(q: Any, k: Any, v: Any, g: Any, b: Any) -> Any:
    """A bias that is the same for the whole batch learns, too."""
    return _backward_with_mask_gradient(q, k, v, g, b, is_causal=False)


def causal_mask_gradient(q: Any, k: Any, v: Any, g: Any, b: Any) -> Any:
    """Where rows look back only, what is beyond gets zeros."""
    return _backward_with_mask_gradient(q, k, v, g, b, is_causal=True)


ATTENTION_CASES: dict[str, Case] = {
    made.function.__name__: made
    for made in (
        Case(causal, (head_tensors(70), head_tensors(70), head_tensors(70)), False),
        Case(cross_attention, (head_tensors(20), head_tensors(50), head_tensors(50, width=40)), False),
        Case(causal_cross_attention, (head_tensors(20, dtype=F16), head_tensors(37, dtype=F16), head_tensors(37, dtype=F16)), False),
        Case(masked, (head_tensors(33), head_tensors(40), head_tensors(40), random_bools(33, 40)), False),
        Case(biased, (head_tensors(33), head_tensors(40), head_tensors(40), normal(1, 3, 40, 33)), False),
        Case(grouped_query_attention, (head_tensors(40, count=6, dtype=BF16), head_tensors(40, count=2, dtype=BF16), head_tensors(40, count=2, dtype=BF16)), False),
        Case(heads_in_last_dim, (normal(2, 35, 3, 16, dtype=BF16), normal(2, 35, 3, 16, dtype=BF16), normal(2, 35, 3, 16, dtype=BF16)), False),
        Case(attention_backward, (head_tensors(70), head_tensors(70), head_tensors(70), head_tensors(70)), False),
        Case(attention_backward_with_bias, (head_tensors(33), head_tensors(40), head_tensors(40), head_tensors(33), normal(2, 3, 33, 40)), False),
        Case(mask_gradient, (head_tensors(33), head_tensors(40), head_tensors(40), head_tensors(33), normal(1, 3, 33, 40)), False),
        Case(causal_mask_gradient, (head_tensors(70), head_tensors(70), head_tensors(70), head_tensors(70), normal(1, 3, 70, 70)), False),
    )
}  # fmt: skip
