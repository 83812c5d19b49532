"""Errors after which the original code may run again: mutations happen once."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

import engine


@pytest.mark.parametrize("backend", ["eager", "aot_eager", "triton"])
def test_a_write_that_no_version_counts_happens_once(backend: str) -> None:
    """``x.data`` has no version, so that nothing shows if the write came before the error."""
    calls: list[int] = []

    def write(x: torch.Tensor, at: torch.Tensor) -> torch.Tensor:
        calls.append(1)
        x.data.add_(1)
        return x.mul(2).index_select(0, at)

    x = torch.ones(3, requires_grad=True) * 1
    compiled = engine.compile(write, backend=backend)
    assert compiled(x, torch.tensor([0])).tolist() == [4.0]
    with pytest.raises(IndexError):
        compiled(x, torch.tensor([7]))
    assert x.tolist() == [3.0, 3.0, 3.0]


def _multiplied(x: torch.Tensor, w: torch.Tensor, at: torch.Tensor, log: list[int]) -> torch.Tensor:
    log.append(1)
    x.mul_(w)
    log.append(2)
    return x[at]


def _transposed(x: torch.Tensor, w: torch.Tensor, at: torch.Tensor, log: list[int]) -> torch.Tensor:
    log.append(1)
    x.t_().mul_(w.unsqueeze(0))
    log.append(2)
    return x.index_select(0, at)


def _through_data(x: torch.Tensor, w: torch.Tensor, at: torch.Tensor, log: list[int]) -> torch.Tensor:
    log.append(1)
    x.data.mul_(w.detach())
    log.append(2)
    return x[at]


@pytest.mark.parametrize("backend", ["eager", "aot_eager", "triton"])
@pytest.mark.parametrize("has_history", [False, True])
@pytest.mark.parametrize("write", [_multiplied, _transposed, _through_data])
def test_side_effects_before_an_error_stay(
    write: Callable[..., torch.Tensor], backend: str, *, has_history: bool
) -> None:
    """A written tensor is put back, history included, before the original code runs again."""

    def seen(run: Callable[..., torch.Tensor]) -> list[object]:
        out: list[object] = []
        for index in (0, 7):
            leaf, w = torch.arange(1.0, 4.0).unsqueeze(1), torch.full((1,), 3.0, requires_grad=True)
            x = leaf.requires_grad_() * 2 if has_history else leaf.clone()
            log: list[int] = []
            try:
                out.append(run(x, w, torch.tensor([index]), log).tolist())
            except (IndexError, RuntimeError) as error:
                out.append(type(error))
            if x.requires_grad:
                x.sum().backward()
            out += [log, x.tolist(), x.stride(), x._version, x.grad_fn is None, w.grad, leaf.grad]
        return out

    assert str(seen(engine.compile(write, backend=backend))) == str(seen(write))
