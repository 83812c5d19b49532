"""Captured backwards match eager in gradients, hook order and exception messages."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch

import engine
from tests.engine.autograd.programs import PROGRAMS
from tests.engine.autograd.random_programs import random_program
from tests.markers import slow_except_sample

BACKENDS = ("eager", "aot_eager")
GENERATED, IN_DEFAULT_RING = 150, 51
COMPILED = 3
"""One in so many of the generated ones is compiled as well."""
UNCOMPILED_SHARE = 4
"""One program in so many uses backend "eager" too, outside the slow ring.

Backend "aot_eager" runs the same capture and more.
"""


def outcome(run: Callable[[list[Any]], Any], backend: str | None) -> tuple[Any, list[Any]]:
    """What a program returns, or raises, and its log."""
    torch.manual_seed(0)
    log: list[Any] = []
    context = contextlib.nullcontext() if backend is None else engine.compiled_autograd(backend)
    with warnings.catch_warnings(), context:
        warnings.simplefilter("ignore")
        try:
            return run(log), log
        except (RuntimeError, TypeError, ValueError) as error:
            return (type(error), str(error)), log


def is_same(a: Any, b: Any) -> bool:
    """Whether two outcomes are the same, tensors to the bit and in their layout."""
    if isinstance(a, torch.Tensor) and isinstance(b, torch.Tensor):
        if a.layout is not b.layout or a.requires_grad != b.requires_grad:
            return False
        if a.layout is not torch.strided:
            return torch.equal(a.to_dense(), b.to_dense())
        return a.dtype is b.dtype and a.shape == b.shape and a.stride() == b.stride() and a.equal(b)
    if isinstance(a, (tuple, list)):
        return type(a) is type(b) and len(a) == len(b) and all(map(is_same, a, b))
    return bool(a == b)


@pytest.mark.parametrize(
    ("name", "backend"),
    [
        pytest.param(name, backend, marks=slow_except_sample(name, UNCOMPILED_SHARE) if backend == "eager" else ())
        for name in PROGRAMS
        for backend in BACKENDS
    ],
)
def test_programs(name: str, backend: str) -> None:
    """A program gives the same result when its backwards are captured and when they hit."""
    expected = outcome(PROGRAMS[name], None)
    for which in ("captured", "hit"):
        found = outcome(PROGRAMS[name], backend)
        assert is_same(found, expected), f"{which}: {found}\nin eager: {expected}"


@pytest.mark.parametrize(
    ("seed", "backend"),
    [
        pytest.param(seed, backend, marks=[] if seed < IN_DEFAULT_RING else [pytest.mark.slow])
        for backend, step in (("eager", 1), ("aot_eager", COMPILED))
        for seed in range(0, GENERATED, step)
    ],
)
def test_generated(seed: int, backend: str) -> None:
    """So does each of many programs made at random."""
    expected = outcome(lambda log: random_program(seed, log), None)
    for which in ("captured", "hit"):
        found = outcome(lambda log: random_program(seed, log), backend)
        assert is_same(found, expected), f"{which}: {found}\nin eager: {expected}"
