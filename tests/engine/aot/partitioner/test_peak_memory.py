"""The peak memory estimate, from the sizes of live tensors, agrees with measured memory."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.profiler import ProfilerActivity, profile
from torch.utils.checkpoint import checkpoint

import engine
from engine.records.aot import PartitionRecord

KILO = 256 * 4
"""Bytes of one tensor here."""


def _partition(fn: Any, *args: Any) -> PartitionRecord:
    engine.reset()
    with engine.record() as session:
        engine.compile(fn, backend="aot_eager")(*args)
    (found,) = [c.aot.partition for c in session.compilations if c.aot is not None]
    assert found is not None
    return found


def test_a_chain_needs_two_tensors_at_once() -> None:
    """The peak estimate of a chain is two tensors in the forward and four in the backward.

    Forward: a value and its result. Backward: the saved value, the tangent, one recomputed value and their
    product.
    """

    def chain(x: torch.Tensor) -> torch.Tensor:
        return x.exp().exp()

    found = _partition(chain, torch.zeros(256).requires_grad_())
    assert found.saved_bytes == KILO
    assert found.forward_peak_bytes == 2 * KILO
    assert found.backward_peak_bytes == 4 * KILO


def test_views_take_no_memory() -> None:
    """A transposed and reshaped tensor is counted once."""

    def views(x: torch.Tensor) -> torch.Tensor:
        return (x * 2).view(16, 16).t().unsqueeze(0)

    assert _partition(views, torch.zeros(256).requires_grad_()).forward_peak_bytes == KILO


@pytest.mark.thorough
def test_checkpoints_lower_the_peak() -> None:
    """Four blocks in checkpoints need less at once than without."""
    blocks = nn.ModuleList(
        nn.Sequential(nn.Linear(32, 128), nn.Tanh(), nn.Linear(128, 32), nn.Tanh()) for _ in range(4)
    )

    def kept(x: torch.Tensor) -> torch.Tensor:
        for block in blocks:
            x = block(x)
        return x

    def again(x: torch.Tensor) -> torch.Tensor:
        for block in blocks:
            x = checkpoint(block, x, use_reentrant=False)
        return x

    x = torch.randn(512, 32).requires_grad_()
    assert _partition(again, x).backward_peak_bytes < 0.7 * _partition(kept, x).backward_peak_bytes


def _most(run: Callable[[], None]) -> tuple[int, int]:
    """Return the peak and the remaining bytes of a run, as reported by torch's allocator."""
    gc.collect()
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiled:
        run()
    told = profiled.profiler.kineto_results.events()  # type: ignore[union-attr]
    alive = most = 0
    for event in sorted((e for e in told if e.name() == "[memory]"), key=lambda e: e.start_ns()):
        alive += event.nbytes()
        most = max(most, alive)
    return most, alive


class _Block(nn.Module):
    """A transformer's block, with attention."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.three, self.one = nn.LayerNorm(32), nn.Linear(32, 96), nn.Linear(32, 32)
        self.wide = nn.Sequential(nn.LayerNorm(32), nn.Linear(32, 128), nn.GELU(), nn.Linear(128, 32))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Of batch, length and 32 numbers each."""
        q, k, v = self.three(self.norm(x)).view(*x.shape[:2], 3, 4, 8).permute(2, 0, 3, 1, 4).unbind(0)
        seen = F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).reshape(x.shape)
        x = x + self.one(seen)
        found: torch.Tensor = x + self.wide(x)
        return found


class _Chain(nn.Sequential):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """One after the other, each in an activation checkpoint."""
        for part in self:
            x = checkpoint(part, x, use_reentrant=False)
        return x


def _layers(count: int, *make: Callable[[], nn.Module]) -> list[nn.Module]:
    return [nn.Sequential(*(m() for m in make)) for _ in range(count)]


MODELS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "perceptron": (lambda: nn.Sequential(*_layers(6, lambda: nn.Linear(64, 64), nn.GELU)), (128, 64)),
    "convolutions": (
        lambda: nn.Sequential(*_layers(5, lambda: nn.Conv2d(4, 4, 3, padding=1), lambda: nn.BatchNorm2d(4), nn.ReLU)),
        (4, 4, 16, 16),
    ),
    "transformer": (lambda: nn.Sequential(*(_Block() for _ in range(4))), (4, 16, 32)),
    "transformer in checkpoints": (lambda: _Chain(*(_Block() for _ in range(4))), (4, 16, 32)),
}


@pytest.mark.combinations
@pytest.mark.parametrize("backend", ["aot_eager", "triton"])
@pytest.mark.parametrize("trains", [False, True], ids=["infers", "trains"])
@pytest.mark.thorough
@pytest.mark.parametrize("name", MODELS)
def test_no_more_is_allocated_at_once_than_in_eager(name: str, trains: bool, backend: str) -> None:
    """Compiled calls leave no memory allocated and peak no higher than eager.

    In training the peak may be higher by the initial gradient, which autograd holds while the backward runs.
    """
    make, shape = MODELS[name]
    model = make().train(trains)

    def step(run: Callable[..., torch.Tensor]) -> None:
        with torch.set_grad_enabled(trains):
            loss = run(torch.randn(shape)).pow(2).mean()
        if trains:
            loss.backward()
            model.zero_grad()

    found = []
    for run in (model, engine.compile(model, backend=backend)):
        step(run)
        step(run)
        found.append(_most(lambda run=run: step(run)))  # type: ignore[misc]
    (eager, _), (ours, left) = found
    assert left == 0
    assert ours <= eager + (torch.zeros(shape).nbytes + KILO if trains else 0)


def test_inputs_that_the_backward_does_not_read_are_let_go_of() -> None:
    """Between forward and backward, an argument lives exactly as long as in eager.

    This also holds for an argument that comes from another graph.
    """

    def joined(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return (x + w).relu()

    found = []
    for run in (joined, engine.compile(joined, backend="aot_eager")):
        w = torch.ones(4, requires_grad=True)
        for make in (lambda: torch.ones(4), lambda: torch.ones(4, requires_grad=True) * 1):
            x = make()
            seen = weakref.ref(x)
            result = run(x, w)
            del x
            gc.collect()
            found.append(seen() is None)
            result.sum().backward()
    assert found == [True] * 4
