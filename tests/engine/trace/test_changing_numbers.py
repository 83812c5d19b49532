"""Numbers of numpy's that change between calls become symbols, as Python's own do."""

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
