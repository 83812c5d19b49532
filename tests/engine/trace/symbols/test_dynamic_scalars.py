"""Tests of dynamic scalars: numbers that change between calls become symbols.

One recompile covers all other numbers.
"""

from __future__ import annotations

import math

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


@pytest.mark.parametrize("by", [1, 2.0, 8, 0.25])
def test_whole_part_and_remainder(by: float) -> None:
    """A float divided by a power of two stays a symbol."""
    engine.reset()
    compiled = engine.compile(lambda x, t: (x * (t // by), x + t % by, t // by, t % by), backend="eager")
    x = torch.arange(3.0)
    with engine.record() as session:
        for t in (1.5, 2.75, 1e-200, 7.0, 1e9 + 0.125):
            whole, rest, *numbers = compiled(x, t)
            assert torch.equal(whole, x * (t // by))
            assert torch.equal(rest, x + t % by)
            assert numbers == [t // by, t % by]
    assert len(session.compilations) == 2


def test_functions_of_numpy_do_not_specialize() -> None:
    """NumPy computes functions of numbers before the graph runs, unless it warns."""
    engine.reset()

    def scaled(x, t, n):
        wave, count = np.cos(t), int(np.ceil(n / 2))
        late = x * 2 if np.greater(t, 5) else x
        return late * wave / np.sqrt(x.shape[-1]) + np.maximum(t, n), float(wave), count, x * np.add(n, 1)

    def logarithms(x, t, n):
        return x * np.log(t), np.log(t), np.sqrt(n), np.add(n, 1)

    x = torch.arange(3)
    calls = [(0.5, 2), (1.5, 5), (2.25, 9), (1e-9, 3), (3.0, 12), (6.0, 4)]
    for function, compilations in ((scaled, 3), (logarithms, 6)):
        compiled = engine.compile(function, backend="eager")
        with engine.record() as session:
            for t, n in calls:
                for got, expected in zip(compiled(x.repeat(n), t, n), function(x.repeat(n), t, n), strict=True):
                    assert type(got) is type(expected)
                    torch.testing.assert_close(got, expected, rtol=0, atol=0)
        assert len(session.compilations) <= compilations
    for values in ((0.0, 2), (-1.0, 2)):
        with pytest.warns(RuntimeWarning, match="in log"):
            got = compiled(x, *values)
        with pytest.warns(RuntimeWarning, match="in log"):
            torch.testing.assert_close(got, logarithms(x, *values), rtol=0, atol=0, equal_nan=True)


def test_rounded_share_of_a_computed_size_does_not_specialize() -> None:
    """Python computes ``int()`` of a product of sizes before the graph runs."""
    engine.reset()

    def capacity(x, factor):
        flat = x.reshape(-1, x.shape[-1])
        halved = torch.nn.functional.conv1d(flat[None], flat.new_ones(4, flat.shape[0], 3), stride=2, padding=1)
        count = min(int(factor * flat.shape[0] * 2 / 5), flat.shape[0])
        return flat[:count] * 2, count, math.ceil(halved.shape[2] * 0.3 * factor), round(factor * 3 * x.shape[0])

    compiled = engine.compile(capacity, backend="eager")
    with engine.record() as session:
        for rows, columns, width in ((2, 5, 6), (3, 7, 9), (4, 4, 8), (6, 9, 13)):
            x = torch.ones(rows, columns, width)
            torch.testing.assert_close(compiled(x, 1.3), capacity(x, 1.3), rtol=0, atol=0)
    assert len(session.compilations) == 2


@pytest.mark.parametrize("kind", [int, float])
def test_functions_of_math_do_not_specialize(kind: type) -> None:
    """Python computes them before the graph runs; a branch on a result guards the result."""
    engine.reset()

    def decay(x, n):
        rate = 0.05 + math.exp(-1.0 * n / 20.0) * math.exp(-1.0 * n / 20.0)
        return x * rate if math.isclose(n, 2.0) else (x * rate, math.log(math.erf(n)), math.copysign(2, -n))

    compiled = engine.compile(decay, backend="eager")
    x = torch.arange(3.0)
    with engine.record() as session:
        for n in (3, 5, 7, 11, 2):
            torch.testing.assert_close(compiled(x, kind(n)), decay(x, kind(n)), rtol=0, atol=0)
    assert len(session.compilations) == 3


def test_numbers_that_python_computes_from_several() -> None:
    """Two numbers, two sizes, and a sum that sympy would round otherwise need one recompile."""
    engine.reset()

    def decay(x, a, n):
        total = a % 0.7 + 0.1 + a * n[0]
        return x * math.exp(-a / n[0]) + math.log(x.shape[0] / x.shape[1]), total if total < 90 else None

    compiled = engine.compile(decay, backend="eager")
    with engine.record() as session:
        for k in range(2, 7):
            given = (torch.ones(k, k + 2), 0.3 * k, [k])
            assert repr(compiled(*given)) == repr(decay(*given))
    assert len(session.compilations) == 2


def test_bools_in_tensors() -> None:
    """A tensor of bools that change needs one recompile for each bool that changes first."""
    engine.reset()
    compiled = engine.compile(lambda x, flags: x * torch.tensor(flags), backend="eager")
    x = torch.arange(3.0)
    with engine.record() as session:
        for k in range(8):
            flags = [k % 2 == 0, k % 3 == 0, k < 5]
            assert torch.equal(compiled(x, flags), x * torch.tensor(flags))
    assert len(session.compilations) <= 4


def test_zero_is_a_symbol() -> None:
    """A float that is 0.0 in the call that compiles is a symbol like any other."""
    engine.reset()
    compiled = engine.compile(lambda x, t: (x * t, t + 1.5, -t), backend="eager")
    x = torch.arange(3.0)
    with engine.record() as session:
        for t in (0.5, 0.0, 0.25, -0.0, 1.0):
            assert repr(compiled(x, t)) == repr((x * t, t + 1.5, -t))
    assert len(session.compilations) == 2


def test_sign_of_a_zero_that_is_specialized() -> None:
    """Texts and ``copysign`` of zeros have eager's sign."""
    engine.reset()

    def signs(x, t):
        return x * t, str(-t), math.copysign(1, t), (-t) ** 3

    compiled = engine.compile(signs, backend="eager")
    for t in (0.5, 0.0, -0.0, 0.0):
        assert repr(compiled(torch.ones(2), t)) == repr(signs(torch.ones(2), t))
