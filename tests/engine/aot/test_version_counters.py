"""Tensors over one memory that have one version counter in one call, and two in the next."""

from __future__ import annotations

import pytest
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


@pytest.mark.parametrize("backend", ["aot_eager", "triton"])
@pytest.mark.parametrize("size", [3, 1 << 15])
def test_inputs_written_once_and_more_often_in_one_call(backend: str, size: int) -> None:
    """Each input's version rises as often as eager writes it."""

    @torch.no_grad()
    def write(once: torch.Tensor, often: torch.Tensor, read: torch.Tensor) -> torch.Tensor:
        once.add_(read.sin())
        often.mul_(2).add_(read.cos()).sub_(1)
        return read.sin() * 2 + once

    mine, theirs = ([torch.ones(size) for _ in range(3)] for _ in range(2))
    run = engine.compile(write, backend=backend)
    for _ in range(2):
        torch.testing.assert_close(run(*mine), write(*theirs))
        torch.testing.assert_close(mine, theirs)
        assert [t._version for t in mine] == [t._version for t in theirs]
