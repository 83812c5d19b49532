"""Data-parallel and fully sharded training in two processes, compiled as in eager."""

from __future__ import annotations

import contextlib
import pathlib
from collections.abc import Sequence
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import checkpoint

import engine
from tests.engine.trace.variables.gloo_processes import a_group, in_two_processes

pytestmark = pytest.mark.skipif(not dist.is_available(), reason="torch without torch.distributed")


class Block(nn.Module):
    """A residual layer."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.linear = nn.LayerNorm(8), nn.Linear(8, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.linear(self.norm(x)).relu()


class Net(nn.Module):
    """Two blocks; the first one is recomputed in the backward."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = Block(), Block()

    def forward(self, x: torch.Tensor) -> Any:
        return self.second(checkpoint(self.first, x, use_reentrant=False))


def _made(kind: str, *, compiles: bool) -> tuple[Any, torch.optim.Optimizer]:
    torch.manual_seed(0)
    module: Any = Net()
    if kind == "ddp":
        module = DistributedDataParallel(module)
    else:
        for part in (module.first, module.second, module):
            fully_shard(part)
    module = engine.compile(module, backend="aot_eager") if compiles else module
    return module, torch.optim.AdamW(module.parameters(), lr=0.01)


def _without_sync(module: Any, *, pauses: bool) -> contextlib.AbstractContextManager[Any]:
    if isinstance(module, DistributedDataParallel):
        return module.no_sync() if pauses else contextlib.nullcontext()
    module.set_requires_gradient_sync(not pauses)
    return contextlib.nullcontext()


def _whole(value: Any) -> torch.Tensor:
    return (value.full_tensor() if hasattr(value, "full_tensor") else value).detach().clone()


def _trained(module: Any, optimizer: torch.optim.Optimizer, seeds: Sequence[int]) -> list[list[torch.Tensor]]:
    """Train a step of two batches per seed; return losses, norms, gradients, parameters."""
    found = []
    for seed in seeds:
        torch.manual_seed(10 * seed + dist.get_rank())
        for pauses in (True, False):
            with _without_sync(module, pauses=pauses):
                loss = module(torch.randn(4, 8)).square().mean()
                loss.backward()
        norm = nn.utils.clip_grad_norm_(module.parameters(), 0.1)
        gradients = [_whole(p.grad) for p in module.parameters()]
        optimizer.step()
        optimizer.zero_grad()
        found.append([_whole(loss), _whole(norm), *gradients, *map(_whole, module.parameters())])
    return found


def _state(module: Any, optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    return dict(zip(("model", "optimizer"), get_state_dict(module, optimizer), strict=True))


def _resumed(kind: str, folder: str, *, compiles: bool) -> tuple[Any, torch.optim.Optimizer]:
    made = _made(kind, compiles=compiles)
    state = _state(*made)
    dcp.load(state, checkpoint_id=folder)
    set_state_dict(*made, model_state_dict=state["model"], optim_state_dict=state["optimizer"])
    return made


def _process(rank: int, folder: str) -> None:
    with a_group(rank, folder):
        for kind in ("ddp", "fsdp"):
            compiled, saved = _made(kind, compiles=True), f"{folder}/{kind}"
            found = _trained(*compiled, range(2))
            with engine.expect(graphs=0, recompiles=0):
                found += _trained(*compiled, range(2, 4))
            torch.testing.assert_close(found, _trained(*_made(kind, compiles=False), range(4)))
            dcp.save(_state(*compiled), checkpoint_id=saved)
            later = _trained(*compiled, range(4, 6))
            for compiles in (True, False):
                torch.testing.assert_close(_trained(*_resumed(kind, saved, compiles=compiles), range(4, 6)), later)


@pytest.mark.thorough
def test_parallel_training_is_as_in_eager(tmp_path: pathlib.Path) -> None:
    """DDP and FSDP2 train as in eager, and compile nothing after the second step.

    With gradient accumulation, clipping and checkpointing; both resume a distributed checkpoint of the compiled module.
    """
    in_two_processes(_process, tmp_path)
