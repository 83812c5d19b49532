"""User hooks on saved tensors give the same gradients as in eager."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.autograd.graph import save_on_cpu, saved_tensors_hooks
from torch.utils.checkpoint import checkpoint

import engine

HOOKS: list[tuple[Callable[[torch.Tensor], Any], Callable[[Any], Any]]] = [
    (lambda t: t, lambda t: t * 2),
    (lambda t: t.half(), lambda t: t.float()),
    (torch.zeros_like, lambda t: t),
    (lambda t: t.detach().numpy().copy(), torch.from_numpy),
]


def _loss(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    return (x @ w).sin().exp().sum()


def _gradients(loss: Callable[..., torch.Tensor], *hooks: Any) -> tuple[torch.Tensor, ...]:
    torch.manual_seed(0)
    given = [torch.randn(3, 3, requires_grad=True) for _ in range(2)]
    with saved_tensors_hooks(*hooks):
        value = loss(*given)
    return torch.autograd.grad(value, given)


@pytest.mark.parametrize("backend", ["eager", "aot_eager", "triton"])
@pytest.mark.parametrize("number", range(len(HOOKS)))
def test_what_hooks_give_back_is_what_gradients_are_of(backend: str, number: int) -> None:
    """Whatever is done to what is saved."""
    found = _gradients(engine.compile(_loss, backend=backend), *HOOKS[number])
    for a, b in zip(found, _gradients(_loss, *HOOKS[number]), strict=True):
        assert torch.equal(a, b)


def test_under_torchs_own_hooks_what_is_compiled_runs() -> None:
    """They give back what was saved: checkpoints and what moves it to main memory."""
    run = engine.compile(_loss, backend="aot_eager")
    given = [torch.randn(3, 3, requires_grad=True) for _ in range(2)]
    expected = torch.autograd.grad(_loss(*given), given)
    with save_on_cpu():
        value = run(*given)
    assert "CompiledFunction" in type(value.grad_fn).__name__
    assert all(map(torch.allclose, torch.autograd.grad(value, given), expected))
    value = checkpoint(run, *given, use_reentrant=False)
    assert "CompiledFunction" in type(value.grad_fn).__name__
    assert all(map(torch.allclose, torch.autograd.grad(value, given), expected))
