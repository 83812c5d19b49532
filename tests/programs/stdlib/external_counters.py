"""``itertools.count`` from outside: read and advanced by compiled code."""

import itertools

import torch

from tests.programs import program

NUMBERS = itertools.count()


@program(lambda: (torch.randn(3), itertools.count(3)), lambda: (torch.randn(3), itertools.count(5)))
def argument(x, numbers):
    """Two numbers are taken; the caller's counter goes on behind them."""
    return x + next(numbers) * next(numbers)


@program(*[lambda: (torch.randn(3),)] * 5)
def of_a_module(x):
    """Each call takes the next number."""
    return x + next(NUMBERS), next(NUMBERS)


@program(
    lambda: (torch.randn(3), itertools.count(3, 2)),
    lambda: (torch.randn(3), itertools.count(3, -1)),
    lambda: (torch.randn(3), itertools.count(0.5, 0.25)),
)
def steps(x, numbers):
    """Another step needs another graph; a counter of floats is asked by Python."""
    return x * next(numbers)


@program(lambda: (torch.randn(3), itertools.count(7)), lambda: (torch.randn(3), itertools.count(9)))
def zipped(x, numbers):
    """A counter beside other iterators."""
    found = dict(zip("ab", numbers, strict=False))
    return x, found, next(numbers)


class Numbered(torch.nn.Module):
    """Numbers its calls."""

    def __init__(self):
        super().__init__()
        self.numbers = itertools.count(1)

    def forward(self, x):
        return x * next(self.numbers)


program(*[lambda: (torch.randn(3),)] * 4)(Numbered)
