"""Random masks are saved as one byte per element, or redrawn from the generator's state."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import engine
from engine.records.aot import PartitionRecord


def drops(x: torch.Tensor) -> torch.Tensor:
    """One mask."""
    return F.dropout(x.sin(), 0.4).cos()


def drops_often(x: torch.Tensor) -> torch.Tensor:
    """Several masks, one of them drawn for columns, with other random operators in between."""
    y = F.dropout(x, 0.2) @ F.dropout(x.t(), 0.6)
    noise = torch.rand_like(y) + torch.randn(y.shape[0])
    return F.dropout(y * noise, 0.1).sin() * torch.bernoulli(y.sigmoid().detach())


def drops_alpha(x: torch.Tensor) -> torch.Tensor:
    """Masks of other kinds of dropout."""
    return F.alpha_dropout(x.sin(), 0.3, True) + F.dropout1d(x, 0.5) * F.feature_alpha_dropout(x, 0.5, True)


def returns_mask(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The mask itself is a result."""
    mask = torch.empty_like(x).bernoulli_(0.5)
    return x.sin() * mask, mask


CASES: list[Callable[..., Any]] = [drops, drops_often, drops_alpha, returns_mask]


def _run(fn: Callable[..., Any], dtype: torch.dtype = torch.float32) -> list[torch.Tensor]:
    torch.manual_seed(4)
    x = torch.randn(96, 96, dtype=dtype).requires_grad_()
    out = fn(x)
    outs = out if isinstance(out, tuple) else (out,)
    outs[0].sum().backward()
    assert x.grad is not None
    return [*(o.detach() for o in outs), x.grad, torch.rand(3)]


@pytest.mark.parametrize("again", [False, True], ids=["kept", "drawn again"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("fn", CASES, ids=lambda f: f.__name__)
def test_random_numbers_are_eagers(fn: Callable[..., Any], dtype: torch.dtype, again: bool) -> None:
    """Results, gradients and what is drawn afterwards, in two calls."""
    engine.reset()
    run = engine.compile(fn, backend="aot_eager", fullgraph=True, options={"recompute_random": again})
    for _ in range(2):
        for expected, found in zip(_run(fn, dtype), _run(run, dtype), strict=True):
            torch.testing.assert_close(found, expected, rtol=0, atol=0, equal_nan=True)


def _partition(fn: Any, x: torch.Tensor, **options: Any) -> PartitionRecord:
    engine.reset()
    with engine.record() as session:
        engine.compile(fn, backend="aot_eager", options=options)(x)
    (aot,) = [c.aot for c in session.compilations if c.aot is not None]
    assert aot.partition is not None
    return aot.partition


def test_a_mask_takes_a_byte_an_element() -> None:
    """Nothing else is kept; the backward makes the rest of it and of the input."""
    x = torch.randn(128, 128).requires_grad_()
    partition = _partition(drops, x)
    assert partition.saved_bytes == x.numel()
    assert partition.saved_input_bytes == x.nbytes


def test_a_state_takes_the_place_of_larger_masks_only() -> None:
    """Drawing again keeps the generator's state; small masks are less than that, and are kept."""
    state = torch.get_rng_state().numel()
    large = _partition(drops, torch.randn(128, 128).requires_grad_(), recompute_random=True)
    assert large.saved_bytes == state
    assert any("generated again" in v.reason for v in large.values if v.action == "recomputed")
    small = _partition(drops, torch.randn(8, 8).requires_grad_(), recompute_random=True)
    assert small.saved_bytes == 64


def test_second_backward_draws_the_same() -> None:
    """``retain_graph`` and draws in between change nothing."""
    x = torch.randn(128, 128).requires_grad_()
    engine.reset()
    y = engine.compile(drops, backend="aot_eager", options={"recompute_random": True})(x).sum()
    (first,) = torch.autograd.grad(y, x, retain_graph=True)
    torch.rand(5)
    (second,) = torch.autograd.grad(y, x)
    assert torch.equal(first, second)


@pytest.mark.thorough
def test_a_net_with_dropout_trains_as_in_eager() -> None:
    """Ten steps with masks drawn again have eager's losses."""
    found = []
    for compiles in (False, True):
        torch.manual_seed(0)
        net = nn.Sequential(nn.Linear(64, 64), nn.Dropout(0.5), nn.GELU(), nn.Linear(64, 64), nn.Dropout(0.2))
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        engine.reset()
        run = engine.compile(net, backend="aot_eager", options={"recompute_random": True}) if compiles else net
        losses = []
        for _ in range(10):
            optimizer.zero_grad()
            loss = run(torch.randn(128, 64)).square().mean()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        found.append(losses)
    assert found[0] == pytest.approx(found[1], rel=1e-5)


def draws_in_place(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """Numbers drawn into memory with gaps, and into a transposed tensor."""
    return x.normal_() + y.bernoulli_(0.5).t()


def test_numbers_drawn_in_place_are_eagers() -> None:
    """In-place random operators on strided tensors draw eager's numbers.

    Kernels draw other numbers for contiguous memory. If functionalization would make the tensor contiguous, the
    graph runs as traced.
    """
    drawn = []
    for run in (draws_in_place, engine.compile(draws_in_place, backend="aot_eager")):
        x, y = torch.zeros(5, 8)[:, ::2], torch.zeros(5, 4).t()
        torch.manual_seed(3)
        drawn.append((run(x, y), x, y))
    assert all(map(torch.equal, *drawn))
