"""Bytes saved for backward never exceed the minimum that the backward could start from."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import pytest
import torch

import engine
import engine.backends.aot
from engine.aot.driver import AotSettings
from engine.records.aot import PartitionRecord

N = 32
BYTES = N * N * 4


def _leaf() -> torch.Tensor:
    return torch.randn(N, N, requires_grad=True)


def _partition(fn: Callable[..., Any], *args: torch.Tensor) -> PartitionRecord:
    engine.reset()
    with engine.record() as session:
        out = engine.compile(fn, backend="aot_eager", fullgraph=True)(*args)
    expected = torch.autograd.grad(fn(*args).sum(), args)
    for e, f in zip(expected, torch.autograd.grad(out.sum(), args), strict=True):
        torch.testing.assert_close(f, e)
    (aot,) = [c.aot for c in session.compilations if c.aot is not None]
    assert aot.partition is not None
    return aot.partition


FROM_INPUTS: dict[str, Callable[..., torch.Tensor]] = {
    "chain": lambda x: x.sin().exp().tanh().sum(),
    "chain that is returned": lambda x: x.sin().exp().tanh(),
    "read twice": lambda x: x.sin() * x.cos(),
    "clamped": lambda x: x.clamp(-1, 1) ** 3,
    "log of sums": lambda x: x.logsumexp(0),
    "two inputs": lambda x, y: torch.where(x > 0, x.sin(), y.cos()),
    "put side by side": lambda x, y: torch.cat([x.sin(), y.cos()]).exp().sum(),
}


@pytest.mark.parametrize("name", FROM_INPUTS)
def test_inputs_that_eager_saves_are_started_from(name: str) -> None:
    """Pointwise operators run again from the inputs: no activation is kept."""
    fn = FROM_INPUTS[name]
    partition = _partition(fn, *(_leaf() for _ in range(fn.__code__.co_argcount)))
    assert partition.saved_bytes == 0
    assert partition.saved_input_bytes == BYTES * fn.__code__.co_argcount


def test_inputs_that_eager_does_not_save_are_the_callers() -> None:
    """The caller may mutate an input that eager does not save, and the gradient stays correct.

    The backward starts from a value computed from that input.
    """

    def fn(x: torch.Tensor) -> torch.Tensor:
        return (x + 1).sin().exp()

    x = torch.randn(N, N, requires_grad=True)
    assert _partition(fn, x).saved_bytes == BYTES
    engine.reset()
    found = []
    for run in (fn, engine.compile(fn, backend="aot_eager")):
        given = x.detach().clone().requires_grad_()
        out = run(given).sum()
        with torch.no_grad():
            given.zero_()
        found.append(torch.autograd.grad(out, given)[0])
    torch.testing.assert_close(*found)


def test_what_is_narrower_is_saved() -> None:
    """A cast in between halves what is kept."""
    x = _leaf()
    assert _partition(lambda x: ((x + 1).bfloat16().sin().float() * 2).exp(), x).saved_bytes <= BYTES // 2


def test_a_pooled_value_is_saved_on_a_cpu() -> None:
    """No kernel of a CPU fuses pooling: to pool again takes longer than to load the value."""
    pool = torch.nn.functional.avg_pool1d
    values = _partition(lambda x: pool(x * 2, 2).sin().exp(), _leaf()).values
    assert [value.action for value in values if "pool" in value.name] == ["saved"]


def test_a_value_that_products_read_is_not_computed_twice_on_a_cpu() -> None:
    """Eager saves it for the product's backward, so saving it needs no more memory than eager."""

    def block(x: torch.Tensor, v: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.gelu(x @ v) @ w

    partition = _partition(block, _leaf(), _leaf(), _leaf())
    assert [value.action for value in partition.values if "gelu" in value.name] == ["saved"]
    assert partition.saved_bytes <= partition.bytes_without_recompute


OF_PARAMETERS: dict[str, Callable[..., torch.Tensor]] = {
    "computed of it": lambda x, w, b: w.exp() * x,
    "scaled and shifted": lambda x, w, b: (x * w.detach() + b).relu().sin(),
    "in parts": lambda x, w, b: torch.cat([p.sigmoid() for p in w.split(N // 2)]) * x,
    "normed": lambda x, w, b: (w.softmax(0) @ x).tanh() + b.exp(),
    "cast": lambda x, w, b: (x.bfloat16() @ w.bfloat16()).float() + b,
}


@pytest.mark.parametrize("name", OF_PARAMETERS)
def test_parameters_that_eager_does_not_save_are_the_optimizers(name: str) -> None:
    """An optimizer step between forward and backward gives eager's gradients.

    Eager saves a value computed from the parameter, so its backward still runs and is correct.
    """
    fn = OF_PARAMETERS[name]
    engine.reset()
    found = []
    for run in (fn, engine.compile(fn, backend="aot_eager")):
        torch.manual_seed(0)
        x, w, b = torch.randn(N, N), *(torch.nn.Parameter(torch.randn(N, N)) for _ in "wb")
        out = run(x, w, b).sum()
        with torch.no_grad():
            for p in (w, b):
                p.mul_(3)
        found.append([g for g in torch.autograd.grad(out, (w, b), allow_unused=True) if g is not None])
    torch.testing.assert_close(*found)


def test_views_that_are_saved_count_once() -> None:
    """A saved tensor and its saved transpose share one memory and count once.

    Without a cut, the backward of a product saves both.
    """
    engine.reset()
    with engine.record() as session, pytest.MonkeyPatch.context() as patch:
        patch.setattr(engine.backends.aot, "AotSettings", functools.partial(AotSettings, partition_method="default"))
        x = _leaf()
        engine.compile(lambda x: (y := x + 1) @ y.t(), backend="aot_eager")(x).sum().backward()
    (aot,) = [c.aot for c in session.compilations if c.aot is not None]
    assert aot.partition is not None
    assert aot.partition.saved_bytes == aot.partition.bytes_without_recompute == BYTES
    assert sum(v.bytes for v in aot.partition.values if v.action == "saved") == BYTES
