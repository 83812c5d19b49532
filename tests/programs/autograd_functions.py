"""``torch.autograd.Function``: how it is applied, with what, and what its context knows."""

from __future__ import annotations

from typing import Any

import torch
from torch.autograd import Function

from tests.programs import program


def leaf(*sizes: int) -> torch.Tensor:
    """Numbers that record gradients."""
    return (torch.arange(float(torch.Size(sizes).numel())).reshape(sizes) + 1).requires_grad_()


class Scaled(Function):
    """Takes a number by name, or not at all."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, factor: int = 2, shift: int = 3) -> torch.Tensor:
        ctx.count = len(ctx.needs_input_grad)
        return x * factor + shift

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> Any:
        return (grad * ctx.count, *[None] * (ctx.count - 1))


class Set(Function):
    """Fills in its defaults, since its context is made apart."""

    @staticmethod
    def forward(x: torch.Tensor, factor: int = 2, shift: int = 3) -> torch.Tensor:
        return x * factor + shift

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        _, ctx.factor, _ = inputs

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> Any:
        return grad * ctx.factor, None, None


@program(lambda: (leaf(3),))
def by_name(x: torch.Tensor) -> Any:
    """Arguments given by name go where the forward has them."""
    return Scaled.apply(x, factor=5), Set.apply(x), Set.apply(shift=1, x=x)


@program(lambda: (leaf(3),), steady=False)  # torch warns of it once
def of_an_instance(x: torch.Tensor) -> Any:
    """Made an object first, as old code does."""
    return Scaled().apply(x, 4)


@program(lambda: (leaf(3),), breaks=1)
def wrongly_named(x: torch.Tensor) -> Any:
    """A name that the forward does not have."""
    try:
        return Scaled.apply(x, other=1)
    except TypeError as error:
        return x * 2, str(error)
