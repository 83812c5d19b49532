"""Partitions of random joint graphs match eager and save no more than without a cut.

Results and gradients are compared. Inputs that the caller may mutate before the backward are read only where
eager reads them.
"""

from __future__ import annotations

import functools
import random
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint

import engine
import engine.backends.aot
from engine.aot.driver import AotSettings
from engine.aot.partitioner import partition

Op = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]


def _halved(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    low, high = x.split(2)
    return torch.cat([high.sin(), low]) + y


def _written(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    made = x.clone()
    made.mul_(y)
    made[1].add_(1)
    return made


def _again(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    made: torch.Tensor = checkpoint(lambda p, q: (p * q).sin().exp() * q, x * 0.1, y, use_reentrant=False)
    return made


OPS: tuple[Op, ...] = (
    lambda x, y: x.sin(),
    lambda x, y: (x * 0.1).exp(),
    lambda x, y: x.sigmoid(),
    lambda x, y: x.relu(),
    lambda x, y: x * y,
    lambda x, y: x + y,
    lambda x, y: x @ y * 0.2,
    lambda x, y: x.t(),
    lambda x, y: x.softmax(-1),
    lambda x, y: x.detach() * y,
    lambda x, y: x * y[0, 0],
    lambda x, y: F.layer_norm(x, (4,), y[0]),
    lambda x, y: F.dropout(x, 0.5, training=True),
    lambda x, y: torch.where(x > y, x, y.cos()),
    lambda x, y: x.max(0, keepdim=True).values + y,
    lambda x, y: x / (x.norm() + 1),
    lambda x, y: x[:1].expand(4, 4).contiguous(),
    lambda x, y: x.bfloat16().float(),
    _halved,
    _written,
    _again,
)


def _program(seed: int) -> tuple[Callable[..., Any], int, int]:
    """A function of as many tensors and then parameters as are told beside it."""
    draw = random.Random(seed)
    tensors, parameters = draw.randint(1, 3), draw.randint(1, 3)
    steps = [(draw.choice(OPS), draw.randrange(4), draw.randrange(99)) for _ in range(draw.randint(2, 8))]
    returned = [draw.randrange(len(steps)) for _ in range(draw.randint(1, 3))]

    def fn(*given: torch.Tensor) -> tuple[torch.Tensor, ...]:
        values = list(given)
        for op, late, any in steps:
            values.append(op(values[-1 - late % len(values)], values[any % len(values)]))
        made = values[len(given) :]
        return tuple(made[k] for k in returned)

    return fn, tensors, parameters


def _run(fn: Callable[..., Any], seed: int, tensors: int, parameters: int, written: str) -> Any:
    """Return results and gradients, or the start of the error raised after a mutation.

    The mutation happens between forward and backward.
    """
    draw = random.Random(seed)
    torch.manual_seed(seed)
    given = [torch.randn(4, 4).requires_grad_(draw.random() < 0.5) for _ in range(tensors)]
    held = [nn.Parameter(torch.randn(4, 4)) for _ in range(parameters)]
    results = fn(*given, *held)
    with torch.no_grad():
        if written:
            draw.choice({"parameters": held, "inputs": given, "results": [r.detach() for r in results]}[written]).mul_(
                2
            )
    needing = [r for r in results if r.requires_grad]
    leaves = [t for t in (*given, *held) if t.requires_grad]
    try:
        found = torch.autograd.grad([r.sum() for r in needing], leaves, allow_unused=True) if needing else ()
    except RuntimeError as error:
        return str(error)[:70]
    return [*(() if written == "results" else [r.detach() for r in results]), *found]


@pytest.mark.combinations
@pytest.mark.thorough
@pytest.mark.parametrize(("way", "clone_cost"), [("min-cut", None), ("min-cut", 0), ("default", None)])
@pytest.mark.parametrize("first", range(0, 40, 8))
def test_random_graphs(first: int, way: Any, clone_cost: int | None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where eager's backward runs, so does ours, with its gradients.

    This also holds where small parameters are cloned.
    """
    if clone_cost is not None:
        monkeypatch.setattr(partition, "_CLONE_COST", clone_cost)
    monkeypatch.setattr(engine.backends.aot, "AotSettings", functools.partial(AotSettings, partition_method=way))
    for seed in range(first, first + 8):
        fn, tensors, parameters = _program(seed)
        engine.reset()
        compiled = engine.compile(fn, backend="aot_eager")
        for written in ("", "parameters", "inputs", "results"):
            expected = _run(fn, seed, tensors, parameters, written)
            with engine.record() as session:
                found = _run(compiled, seed, tensors, parameters, written)
            for aot in [c.aot for c in session.compilations if c.aot is not None and c.aot.partition is not None]:
                assert aot.partition.method == way  # type: ignore[union-attr]
                assert aot.partition.saved_bytes <= aot.partition.bytes_without_recompute, seed  # type: ignore[union-attr]
            if not isinstance(expected, str):
                assert not isinstance(found, str), (seed, written, found)
                for e, f in zip(expected, found, strict=True):
                    assert (e is None) == (f is None), (seed, written)
                    if e is not None:
                        torch.testing.assert_close(f, e, equal_nan=True, msg=lambda m, s=seed: f"{s}: {m}")


def test_a_symbol_inside_the_size_of_a_saved_tensor_is_saved() -> None:
    """The backward gets ``u0`` as a number if it saves only a tensor of ``u0 + 8`` elements."""

    def fn(x: torch.Tensor, chosen: torch.Tensor) -> torch.Tensor:
        edges = torch.cat([chosen.nonzero().squeeze(1), torch.arange(8)])
        degree = torch.zeros(8).index_add(0, edges, torch.ones(edges.shape[0]))
        return (x[edges] * degree[edges]).sin()

    compiled = engine.compile(fn, backend="triton")
    x = torch.randn(8, requires_grad=True)
    with engine.record() as session:
        for threshold in (0, 4, 8):
            chosen = torch.arange(8) >= threshold
            made, wanted = compiled(x, chosen), fn(x, chosen)
            torch.testing.assert_close(made, wanted)
            torch.testing.assert_close(*(torch.autograd.grad(r.sum(), x) for r in (made, wanted)))
    assert [c.failures for c in session.compilations] == [()]


def test_a_norm_is_recomputed_from_a_clone_of_its_bias() -> None:
    """An activation after a group norm saves the norm's input alone.

    The bias may change before the backward.
    """
    torch.manual_seed(0)
    norm, mix = nn.GroupNorm(4, 8), nn.Conv2d(8, 8, 3, padding=1)
    x = torch.randn(4, 8, 64, 64, requires_grad=True)

    def fn(x: torch.Tensor) -> torch.Tensor:
        return mix(F.silu(norm(x)))

    def gradients(call: Callable[..., Any]) -> Any:
        with torch.no_grad():
            norm.bias.fill_(0.5)
        out = call(x)
        with torch.no_grad():
            norm.bias.fill_(7.0)
        return torch.autograd.grad(out.sin().sum(), [x, *norm.parameters(), *mix.parameters()])

    with engine.record() as session:
        found = gradients(engine.compile(fn, backend="aot_eager"))
    torch.testing.assert_close(found, gradients(fn))
    (record,) = (c.aot.partition for c in session.compilations if c.aot is not None and c.aot.partition is not None)
    assert record.saved_bytes < 1.1 * x.numel() * 4  # the activation, which the convolution reads


def test_pointwise_steps_are_recomputed_from_a_clone_of_a_buffer() -> None:
    """A small table that eager does not save is cloned; it may change before the backward."""
    torch.manual_seed(0)
    table, x = torch.rand(16), torch.randn(512, 64, requires_grad=True)

    def fn(x: torch.Tensor) -> torch.Tensor:
        at = x.tanh()[..., None]
        left, right = (at - table[:-1]).sin(), (at - table[1:]).exp()
        return (left * right).sigmoid().square().sum(-1)

    def gradient(call: Callable[..., Any]) -> Any:
        out = call(x)
        saved = table.clone()
        table.fill_(7.0)
        (made,) = torch.autograd.grad(out.sin().sum(), x)
        table.copy_(saved)
        return made

    with engine.record() as session:
        found = gradient(engine.compile(fn, backend="aot_eager"))
    torch.testing.assert_close(found, gradient(fn))
    (record,) = (c.aot.partition for c in session.compilations if c.aot is not None and c.aot.partition is not None)
    assert record.saved_bytes < 2.1 * x.numel() * 4  # the results of tanh, without 15 columns of each


@pytest.mark.parametrize(
    "make",
    [
        lambda: torch.rand(4, 1).expand(4, 6),
        lambda: torch.rand(1, 4).expand(6, 4).t(),
        lambda: torch.rand(20).as_strided((4, 6), (2, 1)),
        lambda: torch.rand(12, 4)[::2].t(),
        lambda: torch.rand(4, 6),
    ],
    ids=["expanded", "permuted", "overlapping", "with gaps", "dense"],
)
def test_clones_of_inputs_of_any_layout(make: Callable[[], torch.Tensor], monkeypatch: pytest.MonkeyPatch) -> None:
    """The backward reads a saved clone where its own strides say, not the input's."""
    monkeypatch.setattr(partition, "_CLONE_COST", 0)
    engine.reset()
    small, x = make(), torch.randn(4, 6, requires_grad=True)

    def fn(x: torch.Tensor, small: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return (x.tanh() * small.sin()).exp(), small.sin() * 2, (small.cos() + x).sigmoid()

    def outcome(call: Callable[..., Any]) -> list[torch.Tensor]:
        results = call(x, small)
        return [*results, *torch.autograd.grad(results[0].sum() + results[2].sum(), x)]

    found, wanted = outcome(engine.compile(fn, backend="triton")), outcome(fn)
    torch.testing.assert_close(found, wanted)
    assert [t.stride() for t in found] == [t.stride() for t in wanted]
