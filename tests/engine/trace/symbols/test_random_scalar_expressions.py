"""Tests of random expressions over numbers and sizes that change between calls.

The results are put to random uses. Each call must give what plain Python gives.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch

import engine

LEAVES = ("n", "m", "x.shape[0]", "y.shape[0]", "y.shape[1]", "x.numel()", "len(xs)", "o.k", "d['a']", "2", "3", "7")
COMPOUND = (
    "({a} + {b})", "({a} - {b})", "({a} * {b})", "({a} // (abs({b}) + 1))", "({a} % (abs({b}) + 2))", "max({a}, {b})",
    "min({a}, {b})", "abs({a} - {b})", "({a} if {a} > {b} else {b})", "sum([{a}, {b}])", "-{a}", "int({a} / 2)",
    "round({a} / 3)", "({a} & 7)", "({a} ^ {b})", "({a} << 1)", "divmod({a}, 3)[1]", "({a} == {b}) + {a}", "({a} or {b})",
    "torch.zeros(abs({a}) % 5 + 1, 2).numel()", "torch.cat([x, x[1:]]).shape[0] * {a}", "len(range({a}, {b}))",
)  # fmt: skip
USES = (
    "str({a})", "{a}", "[{a}]", "{a} > {b}", "{a} == {b}", "x * {a}", "torch.full((2,), {a})", "list(range({a} % 9))",
    "torch.zeros(abs({a}) % 6).shape", "[1, 2, 3, 4, 5][{a} % 5]", "'abcdefgh'[:{a}]", "x[{a}:]", "x[({a}) % x.shape[0]]",
    "hash({a})", "{{1: 'a', 2: 'b', 3: 'c'}}.get({a}, '?')", "'%03d' % ({a})", "({a}, {b}) < (3, 4)", "{a} in (1, 4, 9)",
    "float({a})", "bool({a})", "torch.tensor([{a}, {b}])", "sorted([{a}, {b}, 3])", "{{{a}: {b}}}", "({a}).bit_length()",
    "torch.roll(x, {a})", "torch.where(x > {a}, x, {b})", "[i * {a} for i in range(abs({b}) % 4)]", "x.size(-1) * {a}",
    "xs.append(({a}) % 10) or xs[-1]", "setattr(o, 'k', ({a}) % 10) or o.k", "d.setdefault({a}, {b})", "'x' * ({a} % 5)",
)  # fmt: skip
CALLS = 5
SEEDS = range(48)


def expression(draw: random.Random, depth: int) -> str:
    """An expression of whole numbers."""
    if depth == 0 or draw.random() < 0.2:
        return draw.choice(LEAVES)
    return draw.choice(COMPOUND).format(a=expression(draw, depth - 1), b=expression(draw, depth - 1))


def written(seed: int) -> str:
    """A function that puts a few expressions to use, with a branch or a break now and then."""
    draw = random.Random(seed)
    lines = ["def f(x, y, n, m, xs, d, o):", "    out = []"]
    for number in range(draw.randint(1, 3)):
        lines.append(f"    v{number} = {expression(draw, 3)}")
        lines.append(f"    out.append({draw.choice(USES).format(a=f'v{number}', b=expression(draw, 1))})")
        if draw.random() < 0.15:
            lines.append(f"    engine.graph_break(); out.append(v{number})")
        if draw.random() < 0.2:
            lines.append(f"    if v{number} > {expression(draw, 1)}: x = x + 1")
    return "\n".join([*lines, "    return x, out, v0"])


def arguments(call: int) -> tuple[Any, ...]:
    """Make the arguments of a call; most sizes and numbers differ between calls.

    Some occur again in a later call.
    """
    torch.manual_seed(call)
    sizes = [(4, 3, 2), (5, 4, 2), (7, 4, 3), (4, 6, 5), (6, 3, 2)][call]
    lists = [[1, 2], [3], [1, 2, 3, 4], [], [5, 6]]
    key, attribute = [2, 5, 8, 11, 2][call], SimpleNamespace(k=[3, 4, 6, 9, 3][call])
    n, m = [(4, 6), (5, 7), (9, 8), (12, 3), (4, 6)][call]
    return torch.randn(sizes[0]), torch.randn(*sizes[1:]), n, m, lists[call], {"a": key}, attribute


def outcomes(source: str, around: Callable[[Any], Any]) -> list[str]:
    """What each call gives, or raises, and what it leaves of its arguments."""
    space: dict[str, Any] = {"torch": torch, "engine": engine}
    exec(source, space)
    run = around(space["f"])
    seen = []
    for call in range(CALLS):
        given = arguments(call)
        try:
            result: Any = run(*given)
        except Exception as error:
            result = (type(error).__name__, str(error))
        seen.append(repr((result, given)))
    return seen


@pytest.mark.parametrize("dynamic", [None, True])
@pytest.mark.parametrize("first", [pytest.param(n, marks=pytest.mark.slow if n % 12 else ()) for n in SEEDS[::4]])
def test_each_call_gives_its_own(first: int, dynamic: bool | None) -> None:
    """A call with other numbers never hits an entry that was specialized for different ones.

    The slow ring takes all seeds, otherwise one in three is taken.
    """
    for seed in SEEDS[first : first + (2 if dynamic else 4)]:
        source = written(seed)
        plain = outcomes(source, lambda f: f)
        engine.reset()
        assert outcomes(source, lambda f: engine.compile(f, backend="eager", dynamic=dynamic)) == plain, source
