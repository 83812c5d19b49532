"""Index expressions evaluate as Python arithmetic does and simplify as lowering needs."""

from __future__ import annotations

import itertools
import math
import re

import pytest
import sympy
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.ir.loop_ir.index_expr import (
    IndexExpr,
    IndexNames,
    LoopVar,
    constant,
    contiguous_strides,
    flatten,
    is_bijection,
    is_nonnegative,
    unflatten,
    upper_bound,
    variable,
)

SIZES = (2, 3, 4, 6)
VARIABLES = tuple(LoopVar(f"v{k}", n) for k, n in enumerate(SIZES))


def value(index: IndexExpr, point: dict[str, int]) -> int:
    """The expression's value as Python's integers give it."""
    text = index.text(IndexNames(picked=str))
    return int(eval(text, {}, point))


def points() -> list[dict[str, int]]:
    """Every assignment of the variables."""
    return [
        dict(zip((v.name for v in VARIABLES), values, strict=True)) for values in itertools.product(*map(range, SIZES))
    ]


@st.composite
def expressions(draw: st.DrawFn, depth: int = 3) -> tuple[IndexExpr, str]:
    """An index and the same thing as plain Python text, never negative."""
    kind = draw(st.sampled_from(["var", "const", "add", "mul", "div", "mod"] if depth else ["var", "const"]))
    if kind == "var":
        var = draw(st.sampled_from(VARIABLES))
        return variable(var), var.name
    if kind == "const":
        number = draw(st.integers(0, 7))
        return constant(number), str(number)
    left, text = draw(expressions(depth - 1))
    if kind == "add":
        right, other = draw(expressions(depth - 1))
        return left + right, f"({text} + {other})"
    by = draw(st.integers(1, 8))
    if kind == "mul":
        return left * by, f"({text} * {by})"
    return (left.div(by), f"({text} // {by})") if kind == "div" else (left.mod(by), f"({text} % {by})")


@settings(max_examples=300, deadline=None)
@pytest.mark.thorough
@given(expressions())
def test_values_are_pythons(expression: tuple[IndexExpr, str]) -> None:
    """Whatever is simplified, every value stays what plain integer arithmetic gives."""
    index, text = expression
    for point in points():
        assert value(index, point) == eval(text, {}, point), (index, text, point)


@settings(max_examples=200, deadline=None)
@pytest.mark.thorough
@given(expressions())
def test_upper_bounds_hold(expression: tuple[IndexExpr, str]) -> None:
    """No value exceeds the upper bound that is claimed."""
    index, _ = expression
    top = upper_bound(index)
    assert top is None or all(value(index, p) <= top for p in points())


@settings(max_examples=200, deadline=None)
@pytest.mark.thorough
@given(st.permutations(list(range(4))), st.integers(0, 3), st.integers(1, 6))
def test_bijections_visit_each_element_once(order: list[int], split: int, by: int) -> None:
    """What is called a bijection really visits every element exactly once."""
    parts: list[IndexExpr] = []
    shape: list[int] = []
    for k in order:
        var = variable(VARIABLES[k])
        pieces = (
            [(var.div(by), -(-SIZES[k] // by)), (var.mod(by), min(by, SIZES[k]))] if k == split else [(var, SIZES[k])]
        )
        parts += [p for p, _ in pieces]
        shape += [n for _, n in pieces]
    if is_bijection(parts, tuple(shape), VARIABLES):
        seen = {tuple(value(p, point) for p in parts) for point in points()}
        assert len(seen) == math.prod(SIZES) == math.prod(shape)


def test_permutation_is_a_bijection_and_a_broadcast_is_not() -> None:
    """A transposed walk visits everything once; a walk that ignores a variable does not."""
    a, b, c, d = map(variable, VARIABLES)
    assert is_bijection((c, a, d, b), (4, 2, 6, 3), VARIABLES)
    assert not is_bijection((a, b, c), (2, 3, 4), VARIABLES)
    assert not is_bijection((a, b, c, c), (2, 3, 4, 6), VARIABLES)


def test_reshape_there_and_back_is_the_variable_again() -> None:
    """Unflattening a flat index to coordinates and flattening them returns the index."""
    flat = LoopVar("x", 4 * 6 * 8)
    parts = unflatten(variable(flat), (4, 6, 8))
    assert flatten(parts, contiguous_strides((4, 6, 8))) == variable(flat)


def test_symbolic_reshape_there_and_back() -> None:
    """The same holds for sizes that are symbols."""
    s = sympy.Symbol("s0", integer=True, positive=True)
    flat = LoopVar("x", 4 * s * 32)
    parts = unflatten(variable(flat), (4, s, 32))
    assert flatten(parts, contiguous_strides((4, s, 32))) == variable(flat)


def test_size_of_one_is_always_at_zero() -> None:
    """A variable of size 1 does not appear."""
    assert variable(LoopVar("x", 1)).is_constant


def test_symbols_are_at_least_one() -> None:
    """s - 1 is known not to be negative, s - 2 is not."""
    s = sympy.Symbol("s0", integer=True, positive=True)
    assert is_nonnegative(s - 1)
    assert not is_nonnegative(s - 2)


def test_negative_remainders_are_not_split_off() -> None:
    """A reversed variable stays whole inside a division, since targets round towards zero."""
    x = LoopVar("x", 9)
    text = (variable(x) * -1 + 8).div(3).text(IndexNames(picked=str))
    assert re.fullmatch(r"\(\(-x \+ 8\) // 3\)", text)
