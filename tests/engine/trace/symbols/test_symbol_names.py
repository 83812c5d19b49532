"""Breaks name numbers by what the user wrote."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import pytest
import torch

import engine


def of_size(x: torch.Tensor) -> Any:
    return torch.ones(2) @ [x.size(0) * 2]  # type: ignore[operator]


def of_result(x: torch.Tensor) -> Any:
    return inspect.signature(x.sum().item())  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("function", "named"),
    [
        (of_size, "tensor f32[2] @ list of 1 [2*x.shape[0]]"),
        (of_result, "inspect.signature() of the number x.sum().item()"),
    ],
)
def test_a_break_names_a_number_by_its_source(function: Callable[[torch.Tensor], Any], named: str) -> None:
    """A size is named by its tensor and dimension, a result by its call, none by a symbol."""
    with engine.record() as session, pytest.raises(TypeError):
        engine.compile(function, dynamic=True)(torch.randn(5))
    (context,) = [b.context for c in session.compilations if c.trace for b in c.trace.breaks]
    assert context == named
