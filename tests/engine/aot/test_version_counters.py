"""Tensors over one memory that have one version counter in one call, and two in the next."""

from __future__ import annotations

import torch

import engine


def _doubled(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    y.mul_(2)
    return x + 1


def _made(*, together: bool) -> tuple[torch.Tensor, torch.Tensor]:
    memory = torch.ones(4)
    return (memory if together else memory.data).view(2, 2), memory


def test_one_memory_counted_together_then_apart() -> None:
    """A write bumps the other tensor's version counter only if both are views of one base."""
    engine.reset()
    run = engine.compile(_doubled, backend="aot_eager")
    for together in (True, False):
        theirs, mine = _made(together=together), _made(together=together)
        _doubled(*theirs)
        run(*mine)
        assert [t._version for t in mine] == [t._version for t in theirs]
        assert mine[0].tolist() == theirs[0].tolist()
