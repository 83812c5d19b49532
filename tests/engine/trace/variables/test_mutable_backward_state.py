"""Tests that a user's backward reads outside state when it runs.

The state is not read when the function is applied.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch

import engine

SCALE = 1.0
FACTOR = torch.tensor(2.0)
FIXED = 3.0


def set_globals(scale: float) -> None:
    """Give the globals that a backward reads other values."""
    global SCALE, FACTOR
    SCALE, FACTOR = scale, torch.tensor(scale)


class OfGlobals(torch.autograd.Function):
    """Its backward reads a number that a function of this module changes."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, _: Any) -> torch.Tensor:
        return x * 2

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> Any:
        return grad * through_helper(), None


def through_helper() -> float:
    """What the backward reads by a call."""
    return SCALE


class OfTensor(OfGlobals):
    """Its backward reads a tensor from outside."""

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> Any:
        return grad * FACTOR, None


class Held:
    """An object whose attribute is read."""

    def __init__(self, scale: float) -> None:
        self.scale = scale


class OfObject(torch.autograd.Function):
    """Its backward reads an attribute of an argument."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, held: Held) -> torch.Tensor:
        ctx.held = held
        return x * 2

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> Any:
        return grad * ctx.held.scale, None


class OfList(OfObject):
    """Its backward reads a list that it was given."""

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> Any:
        return grad * ctx.held[0], None


class OfClass(OfGlobals):
    """Its backward reads an attribute of a class."""

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> Any:
        return grad * Held.scale, None


def change(held: Any, scale: float) -> None:
    """Change whatever a backward may read."""
    set_globals(scale)
    Held.scale = scale
    if isinstance(held, list):
        held[0] = scale
    else:
        held.scale = scale


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
@pytest.mark.parametrize("function", [OfGlobals, OfTensor, OfObject, OfList, OfClass])
def test_a_backward_reads_what_is_there_when_it_runs(function: Any, backend: str) -> None:
    """What changes between forward and backward counts as it is in the backward."""
    held: Any = [1.0] if function is OfList else Held(1.0)
    change(held, 1.0)
    compiled = engine.compile(lambda x, held: function.apply(x.sin(), held), backend=backend)
    x = torch.ones(2, requires_grad=True)
    for scale in (4.0, 5.0, 6.0):
        y = compiled(x, held)
        change(held, scale)
        (grad,) = torch.autograd.grad(y.sum(), x)
        torch.testing.assert_close(grad, x.detach().cos() * scale)


class OfConstant(OfGlobals):
    """Its backward reads a number that nothing in this module changes."""

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> Any:
        return grad * FIXED, None


def test_constants_of_a_module_are_compiled() -> None:
    """A number that only the module's top level assigns leaves AOT at work."""
    compiled = engine.compile(lambda x: OfConstant.apply(x.sin(), None), backend="aot_eager", fullgraph=True)
    with engine.record() as session:
        compiled(torch.ones(2, requires_grad=True)).sum().backward()
    (compilation,) = session.compilations
    assert compilation.aot is not None and not compilation.failures
