"""Tests of ``torch._dynamo.error_on_graph_break``: when a graph break is an error."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import engine
from tests.torch_internals import error_on_graph_break, get_error_on_graph_break

X = torch.ones(3)


def _compiled(function: Callable[..., Any]) -> Callable[..., Any]:
    engine.reset()
    return engine.compile(function, backend="eager")


def _breaks(x: torch.Tensor) -> torch.Tensor:
    x = x + 2
    engine.graph_break()
    return x * 4


def _strict(x: torch.Tensor) -> torch.Tensor:
    with error_on_graph_break(True):
        return _breaks(x + 1)


def _loose(x: torch.Tensor) -> torch.Tensor:
    x = x + 1
    with error_on_graph_break(False):
        engine.graph_break()
        x = x * 2
        engine.graph_break()
    return x + 4


def _loose_inside(x: torch.Tensor) -> torch.Tensor:
    return error_on_graph_break(False)(_breaks)(x + 1)


LOOSE = error_on_graph_break(False)(_breaks)


def _loose_outside(x: torch.Tensor) -> torch.Tensor:
    return LOOSE(x + 1)


@pytest.mark.parametrize("function", [_strict, error_on_graph_break(True)(_breaks)])
def test_a_break_is_an_error(function: Callable[..., Any]) -> None:
    """In a block of the traced code, and in a decorated function that is compiled."""
    with pytest.raises(engine.GraphBreak, match="graph_break"):
        _compiled(function)(X)


def test_a_break_is_an_error_around_a_call() -> None:
    """The setting in force where a function is compiled counts."""
    compiled = _compiled(_breaks)
    with error_on_graph_break(True), pytest.raises(engine.GraphBreak):
        compiled(X)
    torch.testing.assert_close(compiled(X), _breaks(X))


@pytest.mark.parametrize("function", [_loose, _loose_inside, _loose_outside])
def test_parts_may_break(function: Callable[..., Any]) -> None:
    """A region that allows graph breaks may break inside one that forbids them.

    The setting is restored after it.
    """
    compiled = _compiled(function)
    with error_on_graph_break(True):
        for _ in range(2):
            torch.testing.assert_close(compiled(X), function(X))
            assert get_error_on_graph_break()
    assert not get_error_on_graph_break()


def test_fullgraph_comes_first() -> None:
    """A part that may break does not overrule ``fullgraph``."""
    engine.reset()
    with pytest.raises(engine.GraphBreak):
        engine.compile(_loose, backend="eager", fullgraph=True)(X)
