"""Functions that the standard library wraps in traced code: caches, dispatch by class."""

import functools
from typing import Any

import torch

from tests.programs import program


@program(lambda: (torch.ones(2), 3), breaks=8, steady=False)
def cache_made_inside(x: torch.Tensor, n: int) -> tuple[Any, ...]:
    """An ``lru_cache`` function runs once for equal arguments and reports its call counts."""
    calls: list[int] = []

    @functools.lru_cache(maxsize=2)
    def double(k: int) -> int:
        calls.append(k)
        return k * 2

    @functools.cache
    def fib(k: int) -> int:
        return k if k < 2 else fib(k - 1) + fib(k - 2)

    total = double(n) + double(n) + double(4) + double(5) + double(n)
    return x * total, calls, tuple(double.cache_info()), double.__name__, fib(12)


@program(lambda: (torch.ones(2),), breaks=2, steady=False)
def dispatch_made_inside(x: torch.Tensor) -> tuple[Any, ...]:
    """A ``singledispatch`` function registered by class and annotation is used and returned."""

    @functools.singledispatch
    def scale(value: Any) -> Any:
        return value * 2

    @scale.register(int)
    def _by_class(value: int) -> int:
        return value + 100

    @scale.register
    def _by_annotation(value: str) -> str:
        return value + "!"

    return scale(x), scale(3), scale("a"), scale(True), scale.dispatch(str)("b"), scale.__name__


@functools.singledispatch
def described(value: Any) -> str:
    """What kind of value it is."""
    return "something"


@program(lambda: (torch.ones(2),), breaks=1, steady=False)
def dispatch_extended(x: torch.Tensor) -> tuple[Any, ...]:
    """What is registered is seen by the next call."""
    before = described(1.5)
    described.register(float, lambda value: "a float")
    return x + 1, before, described(1.5)


@functools.lru_cache(maxsize=2)
def _doubled(n):
    return n * 2


@program(lambda: (torch.ones(2),), breaks=7)
def cache_that_is_asked(x):
    """A cache from outside that is asked how often it is used is used as often."""
    _doubled.cache_clear()
    found = _doubled(1), _doubled(1), _doubled(2), _doubled(3), _doubled(1)
    return found, _doubled.cache_info(), x + 1


@program(lambda: (torch.ones(2),), breaks=8)
def equal_arguments_of_other_types(x):
    """A lone number is cached under itself, others with what equals them."""

    @functools.cache
    def plus(n, m=1):
        return n + m

    found = plus(1), plus(1.0), plus(True), plus(n=1), plus(2, 1.0), plus(2, 1)
    return [type(f).__name__ for f in found], plus.cache_info(), x + 1
