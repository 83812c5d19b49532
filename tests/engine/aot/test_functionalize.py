"""Small programs that mutate, alias and draw random numbers match eager through AOT.

The ATen executor runs the compiled graphs.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from tests.engine.aot.assert_matches_eager import assert_matches_eager
from tests.engine.aot.tracing import UnsupportedInTrace, compiled

torch.manual_seed(0)
X, Y, W, B = torch.randn(3, 4), torch.randn(3, 4), torch.randn(4, 4), torch.randn(4)
SLICE = torch.randn(5, 6)[1:4, 2:6]
IMAGE = torch.randn(2, 3, 4, 4)
INDEX = torch.tensor([0, 2])
HEADS = torch.randn(2, 2, 5, 8)


def in_place(x: Any) -> Any:
    x.add_(1)
    return (x * 2,)


def in_place_operator(x: Any, y: Any) -> Any:
    x += y
    x *= 2
    return (x,)


def written_through_view(x: Any) -> Any:
    x[0].mul_(3)
    x.t()[1].zero_()
    return (x + 0,)


def set_item(x: Any, y: Any) -> Any:
    x[:, 1] = y[:, 0]
    x[0] = 5.0
    return ()


def swap(x: Any, y: Any) -> Any:
    old = x.clone()
    x.copy_(y)
    y.copy_(old)
    return (old,)


def view_returned(x: Any) -> Any:
    return x.view(-1), x[1], x.t(), x[:, 1:3], x.unsqueeze(0)


def view_returned_after_writing(x: Any) -> Any:
    v = x[1:]
    x.add_(1)
    v.mul_(2)
    return v, x.view(-1)[2:], v.t()


def same_twice(x: Any) -> Any:
    y = x + 1
    return y, y, x, x


def views_of_intermediate(x: Any) -> Any:
    y = x * 2
    return y[0], y.view(-1), y


def views_of_intermediate_written(x: Any) -> Any:
    y = x * 2
    v = y[1]
    v.add_(10)
    y.mul_(2)
    return v, y.t()


def view_of_hidden_intermediate(x: Any) -> Any:
    return ((x * 2).t(),)


def split_intermediate(x: Any, w: Any) -> Any:
    a, b = (x @ w).split(2, dim=1)
    return a, b, a + b


def detached(x: Any) -> Any:
    return x.detach(), (x + 1).detach(), x[0].detach()


def detached_twice(x: Any) -> Any:
    y = x + 1
    return y.detach(), y


def nothing(x: Any) -> Any:
    return ()


def only_input(x: Any) -> Any:
    return (x,)


def no_inputs() -> Any:
    return torch.ones(2, 3), torch.arange(4), torch.zeros(2).add_(1)


def constants(x: Any) -> Any:
    return x + 1, 3, None, "text", 2.5, True, torch.float32


def created_inside(x: Any) -> Any:
    out = torch.zeros(3, 4)
    out[1:] = x[1:]
    out.add_(torch.tensor([1.0, 2.0, 3.0, 4.0]))
    return (out,)


def out_argument(x: Any, y: Any) -> Any:
    o = torch.empty(3, 4)
    torch.add(x, y, out=o)
    torch.mul(x, y, out=y)
    return (o,)


def types(x: Any) -> Any:
    return (x > 0).any(), x.argmax(), x.to(torch.float64), x.to(torch.int32), x.sum(dtype=torch.float64), x.half()


def in_place_narrower(x: Any, y: Any) -> Any:
    h = x.to(torch.float16)
    h.add_(y)
    i = torch.arange(3) + x.argmax()
    i.mul_(3)
    return h, i


def half_dtype_view(x: Any) -> Any:
    return (x.view(torch.int32),)


def chained_views(x: Any) -> Any:
    a = x.view(2, 6)
    b = a.t()
    b[0].add_(1)
    c = b.reshape(3, 4)
    return a, b, c


def transposed_intermediate(x: Any) -> Any:
    y = torch.empty(4, 3).t()
    y.copy_(x)
    y.add_(x)
    return (y,)


def expanded(x: Any) -> Any:
    return x[:, :1].expand(3, 4), (x[0] + 1).expand(3, 4)


def dropout(x: Any) -> Any:
    return F.dropout(x, 0.5), F.dropout(x, 0.3, training=False), F.dropout(x, 0.2, inplace=True)


def random_numbers(x: Any) -> Any:
    a = torch.rand(3, 4)
    torch.randn(7)
    b = torch.randint(0, 9, (5,))
    c = torch.empty(4).normal_()
    return a + x, b, c, torch.bernoulli(torch.full((6,), 0.5)), torch.randperm(8), torch.rand_like(x), x.uniform_()


def attention(q: Any) -> Any:
    mask = torch.ones(5, 5, dtype=torch.bool).tril()
    sdpa = F.scaled_dot_product_attention
    return sdpa(q, q, q), sdpa(q, q, q, is_causal=True), sdpa(q, q, q, attn_mask=mask), sdpa(q, q, q, scale=0.5)


def attention_with_dropout(q: Any) -> Any:
    return (F.scaled_dot_product_attention(q, q, q, dropout_p=0.5),)


def layers(x: Any, w: Any, b: Any) -> Any:
    h = F.gelu(F.linear(x, w, b), approximate="tanh")
    h = F.layer_norm(h, (4,), b, b)
    return F.log_softmax(h, -1), F.softmax(h, 0), F.silu(h), F.rms_norm(h, (4,), b)


def linear_3d(x: Any, w: Any, b: Any) -> Any:
    return F.linear(x.unsqueeze(0), w, b), torch.matmul(x.unsqueeze(0), w), torch.einsum("ij,kj->ik", x, w)


def batch_norm(x: Any, mean: Any, var: Any) -> Any:
    return F.batch_norm(x, mean, var, training=True, momentum=0.1), F.batch_norm(x, mean, var)


def images(x: Any, w: Any) -> Any:
    h = F.conv2d(x, w, padding=1)
    return F.max_pool2d(h, 2), F.interpolate(h, scale_factor=2), F.adaptive_avg_pool2d(h, 1), F.group_norm(h, 3)


def indexing(x: Any, i: Any) -> Any:
    x.index_put_((i,), torch.ones(2, 4), accumulate=True)
    x.index_add_(0, i, torch.ones(2, 4))
    x.scatter_(1, i.view(2, 1), 7.0)
    return x[i], x.index_select(0, i), F.embedding(i, x), x.masked_fill(x > 1, 0.0)


def sorting(x: Any) -> Any:
    values, order = x.sort(dim=1)
    top = x.topk(2)
    return values, order, top[0], top[1], x.max(dim=0)[0], x.cumsum(0), torch.cat([x, x]), torch.stack([x, x], 1)


def reshaped_intermediate(x: Any) -> Any:
    y = x + 1
    y.unsqueeze_(0)
    y.mul_(2)
    z = torch.empty(0)
    z.resize_(3, 4)
    z.copy_(x)
    return y, z


def written_through_detach(x: Any) -> Any:
    y = x.detach()
    y.add_(1)
    return (y,)


def grad_mode_inside(x: Any) -> Any:
    torch._C._set_grad_enabled(False)
    y = x * 2
    torch._C._set_grad_enabled(True)
    return (y + 1,)


PROGRAMS: list[tuple[Callable[..., Any], tuple[Any, ...]]] = [
    (in_place, (X,)),
    (in_place, (SLICE,)),
    (in_place_operator, (X, Y)),
    (written_through_view, (X,)),
    (set_item, (X, Y)),
    (swap, (X, Y)),
    (view_returned, (X,)),
    (view_returned_after_writing, (X,)),
    (same_twice, (X,)),
    (views_of_intermediate, (X,)),
    (views_of_intermediate_written, (X,)),
    (view_of_hidden_intermediate, (X,)),
    (split_intermediate, (X, W)),
    (detached, (X,)),
    (detached_twice, (X,)),
    (nothing, (X,)),
    (only_input, (X,)),
    (no_inputs, ()),
    (constants, (X,)),
    (created_inside, (X,)),
    (out_argument, (X, Y)),
    (types, (X,)),
    (in_place_narrower, (X, Y)),
    (half_dtype_view, (X,)),
    (chained_views, (X,)),
    (transposed_intermediate, (X,)),
    (expanded, (X,)),
    (dropout, (X,)),
    (random_numbers, (X,)),
    (attention, (HEADS,)),
    (attention_with_dropout, (HEADS,)),
    (layers, (X, W, B)),
    (linear_3d, (X, W, B)),
    (batch_norm, (IMAGE, torch.zeros(3), torch.ones(3))),
    (images, (IMAGE, torch.randn(6, 3, 3, 3))),
    (indexing, (X, INDEX)),
    (sorting, (X,)),
    (reshaped_intermediate, (X,)),
    (written_through_detach, (X,)),
    (grad_mode_inside, (X,)),
]
IDS = [f"{fn.__name__}{n}" for n, (fn, _) in enumerate(PROGRAMS)]


@pytest.mark.parametrize(("fn", "args"), PROGRAMS, ids=IDS)
@pytest.mark.parametrize("grad", [True, False])
def test_equals_eager(fn: Callable[..., Any], args: tuple[Any, ...], grad: bool) -> None:
    """The compiled graph matches eager in results, mutations and aliasing, and is functional.

    It is called twice.
    """
    if fn is grad_mode_inside and not grad:
        pytest.skip("ends in another grad mode by design")
    with torch.set_grad_enabled(grad):
        result, lowered = compiled(fn, args)
        assert result.record.mode == "inference", result.record.note
        assert len(lowered) == 1
        assert_matches_eager(fn, result.run, args)
        assert_matches_eager(fn, result.run, args, seed=1)


@pytest.mark.parametrize(("fn", "args"), [p for p in PROGRAMS if p[0] is not grad_mode_inside], ids=IDS[:-1])
def test_symbolic_sizes(fn: Callable[..., Any], args: tuple[Any, ...]) -> None:
    """The compiled graph matches eager with symbolic sizes; untraceable graphs run as traced."""
    try:
        result, _ = compiled(fn, args, dynamic=True)
    except UnsupportedInTrace:
        pytest.skip("sizes are read, which the tests' own tracer does not follow")
    assert_matches_eager(fn, result.run, args)
