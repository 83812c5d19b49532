"""Tests of the dynamic-dimension constraints that ``engine.explain`` reports.

They say which sizes the compiled code accepts, and what limits them.
"""

from __future__ import annotations

import torch

import engine


def only_five(x: torch.Tensor) -> torch.Tensor:
    return x * 2 if x.shape[0] == 5 else x


def more_than_three(x: torch.Tensor) -> torch.Tensor:
    return x * 2 if x.shape[0] > 3 else x


def marked() -> torch.Tensor:
    x = torch.ones(5, 3)
    engine.mark_dynamic(x, 0, min=2, max=64)
    return x


def test_specialized_mark_is_told_with_its_line() -> None:
    """A dynamic mark that the code specializes is reported with its source and a fix.

    The one sentence names the source, the only size, the line that specializes it, and the fix.
    """
    (sentence,) = engine.explain(only_five, marked()).constraints
    line = only_five.__code__.co_firstlineno + 1
    assert sentence.startswith("x.shape[0] is marked dynamic, but the code works for 5 only")
    assert f"test_dynamic_constraints.py:{line}" in sentence
    assert sentence.endswith("Remove the mark, or the code that compares the size.")


def test_range_is_told() -> None:
    """A range is the mark's, narrowed by what the code compared."""
    found = engine.explain(more_than_three, marked())
    (sentence,) = found.constraints
    assert sentence.startswith("x.shape[0] may be any size of at least 4 and at most 64")
    assert sentence in str(found)
