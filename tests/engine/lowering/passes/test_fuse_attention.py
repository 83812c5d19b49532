"""Written-out attention becomes an attention call if results agree, else reports why not."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch

import engine
from engine.kernels.triton.printer import print_triton
from engine.lowering.driver import lower
from engine.lowering.passes.decompose import decompose
from engine.lowering.passes.fuse_attention import fuse_attention
from tests.engine.lowering.trace_aten import trace_to_aten, with_flat_results

NOTHING = float("-inf")
Make = Callable[[], tuple[torch.Tensor, ...]]


def head_tensors(
    *more: Callable[[], torch.Tensor], keys: int = 6, width: int = 16, dtype: torch.dtype = torch.float32
) -> Make:
    """Queries, keys and values of three heads, and what else is given."""
    shapes = ((2, 3, 6, width), (2, 3, keys, width), (2, 3, keys, width))
    return lambda: (*(torch.randn(s).to(dtype) for s in shapes), *(make() for make in more))


def mask_with_fully_masked_row() -> torch.Tensor:
    """A mask that hides some keys, and from one row all of them."""
    mask = torch.rand(6, 6) > 0.6
    mask[2] = True
    return mask


def make_bias() -> torch.Tensor:
    """Zeros and minus infinities, the latter for all keys of one sequence."""
    mask = torch.zeros(2, 1, 1, 6)
    mask[0, ..., 4:] = mask[1] = NOTHING
    return mask


def eager_attention(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, change: Callable[[Any], Any] = lambda s: s
) -> Any:
    """Attention, its scores changed in between."""
    return change(q @ k.transpose(-2, -1) / 4).softmax(-1) @ v


FUSED: dict[str, tuple[Callable[..., Any], Make]] = {
    "scores": (lambda q, k, v: (q @ k.mT / math.sqrt(16)).softmax(-1) @ v, head_tensors()),
    "queries made smaller": (lambda q, k, v: ((q * 0.25) @ k.mT).softmax(-1) @ v, head_tensors()),
    "others' keys": (eager_attention, head_tensors(keys=9)),
    "later keys hidden": (
        lambda q, k, v: eager_attention(
            q, k, v, lambda s: s.masked_fill(torch.ones(6, 6, dtype=torch.bool).triu(1), NOTHING)
        ),
        head_tensors(),
    ),
    "a row that sees nothing": (
        lambda q, k, v, m: eager_attention(q, k, v, lambda s: s.masked_fill(m, NOTHING)), head_tensors(mask_with_fully_masked_row),
    ),
    "a row that sees nothing, with numbers": (
        lambda q, k, v, m: eager_attention(q, k, v, lambda s: s.masked_fill(m, torch.finfo(s.dtype).min)), head_tensors(mask_with_fully_masked_row),
    ),
    "chosen": (
        lambda q, k, v, m: eager_attention(q, k, v, lambda s: torch.where(m, torch.finfo(torch.float32).min, s)),
        head_tensors(mask_with_fully_masked_row),
    ),
    "an added mask": (lambda q, k, v, m: eager_attention(q, k, v, lambda s: s + m), head_tensors(make_bias)),
    "a mask for keys alone": (lambda q, k, v, m: eager_attention(q, k, v, lambda s: s + m), head_tensors(lambda: torch.randn(6))),
    "filled, made smaller, and added to": (
        lambda q, k, v, m, b: eager_attention(q, k, v, lambda s: s.masked_fill(m, NOTHING) * 0.5 - b),
        head_tensors(mask_with_fully_masked_row, lambda: torch.randn(3, 6, 6)),
    ),
    "16-bit numbers": (
        lambda q, k, v: ((q @ k.mT).float() / 4).softmax(-1).to(q.dtype) @ v,
        head_tensors(dtype=torch.bfloat16),
    ),
    "heads alone": (
        lambda q, k, v: torch.bmm(torch.bmm(q[0], k[0].mT).mul(0.25).softmax(-1), v[0]), head_tensors(),
    ),
    "added by the product": (
        lambda q, k, v, a: torch.bmm(torch.baddbmm(a, q[0], k[0].mT, beta=0.5, alpha=0.25).softmax(-1), v[0]),
        head_tensors(lambda: torch.randn(3, 1, 6)),
    ),
    "shared keys": (
        lambda q, k, v: eager_attention(q, *(t[:, :1, None].expand(2, 1, 3, 6, 16).reshape(2, 3, 6, 16) for t in (k, v))), head_tensors(),
    ),
    "sums by letters": (
        lambda q, k, v: torch.einsum("bhij,bhjd->bhid", torch.einsum("bhid,bhjd->bhij", q, k).softmax(-1), v), head_tensors(),
    ),
    "distances looked up": (
        lambda q, k, v, t: eager_attention(q, k, v, lambda s: s + t[torch.arange(6) - torch.arange(6)[:, None]].permute(2, 0, 1)),
        head_tensors(lambda: torch.randn(12, 3)),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", FUSED)
def test_equivalent_attention_is_fused(name: str) -> None:
    """One call gives what eager gives, NaN where a row sees nothing; the scores are gone."""
    function, make = FUSED[name]
    torch.manual_seed(0)
    args = make()
    module = decompose(trace_to_aten(function, args))
    (decision,) = fuse_attention(module)
    assert decision.fused
    assert decision.bytes_saved
    targets = [str(n.target) for n in module.graph.nodes]
    assert "engine.attention.default" in targets
    assert not {"aten.bmm.default", "aten._softmax.default"} & set(targets)
    limit = 2e-2 if args[0].dtype is torch.bfloat16 else 1e-5
    for made, wanted in zip(module(*args), with_flat_results(function)(*args), strict=True):
        torch.testing.assert_close(made, wanted, equal_nan=True, rtol=limit, atol=limit)


NOT_FUSED: dict[str, tuple[Callable[..., Any], Make, str]] = {
    "weights returned": (
        lambda q, k, v: [(w := (q @ k.mT).softmax(-1)) @ v, w], head_tensors(), "weights are returned, or saved for the backward",
    ),
    "scores read": (lambda q, k, v: [(s := q @ k.mT).softmax(-1) @ v, s.sum()], head_tensors(), "scores are read by another operator"),
    "odd width": (eager_attention, head_tensors(width=7), "head dimension 7"),
    "float64_constants": (eager_attention, head_tensors(dtype=torch.float64), "has an attention kernel for float64"),
    "negative scale": (lambda q, k, v: (q @ k.mT * -1).softmax(-1) @ v, head_tensors(), "positive number"),
    "other softmax": (lambda q, k, v: (q @ k.mT).softmax(-2) @ v, head_tensors(), "not over the last dimension"),
    "lower scores": (
        lambda q, k, v, m: eager_attention(q, k, v, lambda s: s.masked_fill(m, -1e9)), head_tensors(mask_with_fully_masked_row), "scores can be as low",
    ),
    "low scores": (
        lambda q, k, v, m: eager_attention(q, k, v, lambda s: s.masked_fill(m, -1e4)), head_tensors(mask_with_fully_masked_row), "scores can be as low",
    ),
    "rounded sums": (
        lambda q, k, v, m: eager_attention(q, k, v, lambda s: s + m.to(q.dtype)), head_tensors(make_bias, dtype=torch.float16), "would round differently",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", NOT_FUSED)
def test_other_attention_is_not_fused_with_a_reason(name: str) -> None:
    """The graph stays as it is; the decision tells the reason and what it costs."""
    function, make, reason = NOT_FUSED[name]
    torch.manual_seed(0)
    args = make()
    module = decompose(trace_to_aten(function, args))
    before = str(module.graph)
    (decision,) = fuse_attention(module)
    assert not decision.fused
    assert reason in decision.reason
    assert decision.bytes_moved
    assert str(module.graph) == before


@pytest.mark.thorough
def test_decisions_are_recorded_with_the_program() -> None:
    """A session shows that scores never go through memory, for sizes that vary too."""
    torch.manual_seed(0)
    q, k, v = head_tensors()()
    for tensor in (q, k, v):
        engine.mark_dynamic(tensor, 0)
        engine.mark_dynamic(tensor, 2)
    engine.reset()
    with engine.record() as session:
        found = engine.compile(eager_attention, target="cuda:90")(q, k, v)
    torch.testing.assert_close(found, eager_attention(q, k, v))
    (lowering,) = [c.lowering for c in session.compilations if c.lowering is not None]
    assert [e.op for e in lowering.externs] == ["engine.attention.default"]
    assert any("scores are never written to memory" in d.reason and d.fused for d in lowering.decisions)


def test_attentions_share_a_mask() -> None:
    """What is made of a mask is made once."""

    def twice(q: Any, k: Any, v: Any, mask: Any) -> Any:
        first = eager_attention(q, k, v, lambda s: s + mask)
        return eager_attention(first, k, v, lambda s: s + mask)

    program = lower(trace_to_aten(twice, head_tensors(make_bias)()), "cuda:90", print_triton)
    assert sum("softmax" in kernel.name for kernel in program.kernels) == 1
