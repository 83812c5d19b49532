"""Errors after which the original code may run again: mutations happen once."""

from __future__ import annotations

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
