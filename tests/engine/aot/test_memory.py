"""The estimate of peak memory: what is alive at once, by the sizes, and what really is, counted."""

from __future__ import annotations

import gc
import weakref
from typing import Any

import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
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
    """Forward: a value and what is made of it. Backward: what was saved, the tangent, one value made again, and their product."""

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


class _Counting(TorchDispatchMode):
    """Counts the bytes of all storages that operators made and that are still alive, and the most there were."""

    def __init__(self) -> None:
        super().__init__()
        self.alive = self.most = 0
        self._known: set[int] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run it and look at what it made."""
        made = func(*args, **(kwargs or {}))
        for t in made if isinstance(made, (tuple, list)) else (made,):
            if isinstance(t, torch.Tensor) and not any(a is not None for a in [t._base]):
                self._count(t)
        return made

    def _count(self, t: torch.Tensor) -> None:
        storage = t.untyped_storage()
        if storage._cdata in self._known:
            return
        self._known.add(storage._cdata)
        self.alive += storage.nbytes()
        self.most = max(self.most, self.alive)
        weakref.finalize(t, self._gone, storage._cdata, storage.nbytes())

    def _gone(self, place: int, count: int) -> None:
        self._known.discard(place)
        self.alive -= count


def test_inputs_are_freed_as_early_as_in_eager() -> None:
    """What the backward was left is let go of while it runs: compiled code holds no more at once than plain PyTorch."""

    def deep(x: torch.Tensor) -> torch.Tensor:
        for _ in range(8):
            x = (x * 1.1).tanh()
        return x

    most = []
    compiled = engine.compile(deep, backend="aot_eager")
    compiled(torch.zeros(256).requires_grad_()).sum().backward()
    for run in (deep, compiled):
        x = torch.zeros(256).requires_grad_()
        gc.collect()
        with _Counting() as counting:
            run(x).sum().backward()
        most.append(counting.most)
    assert most[1] <= most[0] + KILO


def test_inputs_that_the_backward_does_not_read_are_let_go_of() -> None:
    """Between forward and backward an argument lives as long as in eager, also one that comes from another graph."""

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
