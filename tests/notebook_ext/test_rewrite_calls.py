"""Rewriting a cell's calls: which calls go through the hook, with positions unchanged."""

from __future__ import annotations

import ast
import traceback
from typing import Any

import pytest

from notebook_ext.rewrite_calls import bind_hook, called_names, has_top_level_await, rewrite_calls


class Spy:
    """A hook that notes what it was asked."""

    def __init__(self) -> None:
        self.called: list[Any] = []
        self.made: list[Any] = []

    def replace_callee(self, called: Any) -> Any:
        self.called.append(getattr(called, "__name__", called))
        return called

    def replace_definition(self, function: Any) -> Any:
        self.made.append(function.__name__)
        return function


def run(source: str, definitions: frozenset[str] = frozenset()) -> tuple[Spy, dict[str, Any]]:
    """Run source with its calls routed."""
    spy, namespace = Spy(), {}
    tree = rewrite_calls(ast.parse(source), definitions)
    exec(bind_hook(compile(tree, "<cell>", "exec"), spy), namespace)
    return spy, namespace


def test_top_level_calls_go_through_the_hook_and_bodies_do_not() -> None:
    """Calls in for, if, with and comprehensions are top-level; nested scopes are not.

    Nested scopes are functions, lambdas and classes.
    """
    spy, namespace = run(
        "def f(x):\n    return len(x)\ng = lambda x: sum(x)\n"
        "class C:\n    size = max([1])\n"
        "for i in range(1):\n    if abs(i) == 0:\n        y = [str(j) for j in [1]]\nz = f('ab') + g([1])"
    )
    assert spy.called == ["range", "abs", "str", "f", "<lambda>"]
    assert namespace["z"] == 3


def test_decorators_and_defaults_are_top_level() -> None:
    """What runs when a function is defined goes through the hook."""
    spy, _ = run("def twice(n):\n    return lambda f: f\n@twice(2)\ndef f(x=len('a')):\n    return x\n")
    assert spy.called == ["twice", "len"]


def test_definitions_are_handed_over_outermost() -> None:
    """The hook gets a listed function definition with its decorators applied."""
    spy, namespace = run(
        "def add(f):\n    def wrapped():\n        return f() + 1\n    return wrapped\n@add\ndef f():\n    return 1\n",
        frozenset({"f"}),
    )
    assert spy.made == ["wrapped"]
    assert namespace["f"]() == 2


def test_methods_bind_before_the_hook() -> None:
    """The hook sees the bound method, and arguments of all kinds arrive."""
    spy, namespace = run("x = '{} {a}'.format(*[1], **{'a': 2})")
    assert spy.called == ["format"]
    assert namespace["x"] == "1 2"


FAILING = [
    "x = 1\ny = int('a')\n",
    "x = [1]\ny = (x\n  .copy()\n  .index(\n     2))\n",
    "x = [1]\ny = (x\n  .copy()\n  .index(\n     *[2]))\n",
    "def f(a):\n    raise KeyError(a)\n\nf(\n  a=1,\n)\n",
    "int(\n  len(3))\n",
    "''.join(['a'],\n  1)\n",
    "missing(\n 1)\n",
    "@int\ndef f():\n    pass\n",
    "(lambda: 1 / 0)()\n",
    "[int(c) for c in\n  'ab']\n",
]


@pytest.mark.parametrize("source", FAILING)
def test_positions_are_exact(source: str) -> None:
    """The frames of an error have the lines and columns that they have without rewriting."""

    def frames(tree: ast.Module, spy: Spy) -> list[tuple[Any, ...]]:
        code = bind_hook(compile(tree, "<cell>", "exec"), spy)
        with pytest.raises(Exception) as caught:  # noqa: PT011
            exec(code, {})
        told = traceback.extract_tb(caught.value.__traceback__)
        return [(f.lineno, f.end_lineno, f.colno, f.end_colno, f.name) for f in told if f.filename == "<cell>"]

    plain = frames(ast.parse(source), Spy())
    assert frames(rewrite_calls(ast.parse(source), frozenset()), Spy()) == plain


def test_called_names_are_those_of_the_top_level() -> None:
    """Names that only functions call are left out."""
    assert called_names(ast.parse("f(1)\ndef g():\n    h()\nx.y()\n[k() for _ in z]")) == {"f", "k"}


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("await f()", True),
        ("async for x in y:\n    pass", True),
        ("[x async for x in y]", True),
        ("async def f():\n    await g()", False),
        ("f()", False),
    ],
)
def test_awaiting_at_the_top_level_is_seen(source: str, expected: bool) -> None:
    """Only what the cell itself awaits counts."""
    assert has_top_level_await(ast.parse(source)) is expected
