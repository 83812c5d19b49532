"""Frozen dataclasses as arguments of functions that are called in the graph."""

import dataclasses

import torch

from tests.programs import program


@dataclasses.dataclass(frozen=True)
class Settings:
    """Numbers only."""

    n: int = 2
    f: float = 1.5


@dataclasses.dataclass(frozen=True)
class Weighted:
    """A tensor and another dataclass."""

    weight: torch.Tensor
    settings: Settings


@torch._dynamo.allow_in_graph
def scale(x, settings, *, k=1):
    return x * settings.n + settings.f * k


@torch._dynamo.allow_in_graph
def weigh(x, weighted):
    return x * weighted.weight + weighted.settings.n


@program(
    lambda: (torch.randn(3), Settings()),
    lambda: (torch.randn(3), Settings(3)),
    lambda: (torch.randn(3), Settings(3, 2.0)),
)
def numbers(x, settings):
    """Other fields need another graph; an instance can be made inside."""
    return scale(x, settings), scale(x, Settings(5), k=3)


@program(lambda: (torch.randn(3, requires_grad=True), Weighted(torch.randn(3), Settings())))
def with_a_tensor(x, weighted):
    """The tensor in the instance is an input of the graph."""
    return weigh(x, weighted)
