"""Tests of dynamic scalars: numbers that change between calls become symbols.

One recompile covers all other numbers.
"""

from __future__ import annotations

import numpy as np
import pytest
import torch

import engine


@pytest.mark.parametrize("kind", [np.float64, np.float32, np.int64])
def test_one_more_compile(kind: type) -> None:
    """The second value makes a symbol of the number, which serves all others."""
    engine.reset()
    compiled = engine.compile(lambda x, s: x * s + 1, backend="eager")
    x = torch.arange(3.0)
    with engine.record() as session:
        for n in (2, 3, 5, 7, 11):
            assert torch.equal(compiled(x, kind(n)), x * kind(n) + 1)
    assert len(session.compilations) == 2


@pytest.mark.parametrize("by", [1, 2.0, 8, 0.25])
def test_whole_part_and_remainder(by: float) -> None:
    """A float divided by a power of two stays a symbol."""
    engine.reset()
    compiled = engine.compile(lambda x, t: (x * (t // by), x + t % by, t // by, t % by), backend="eager")
    x = torch.arange(3.0)
    with engine.record() as session:
        for t in (1.5, 2.75, 1e-200, 7.0, 1e9 + 0.125):
            whole, rest, *numbers = compiled(x, t)
            assert torch.equal(whole, x * (t // by))
            assert torch.equal(rest, x + t % by)
            assert numbers == [t // by, t % by]
    assert len(session.compilations) == 2
