"""Tests of a graph break at every statement of many small functions.

Values, printed text, exceptions and side effects must be those of plain Python.
"""

from __future__ import annotations

import ast
import contextlib
import copy
import inspect
import io
import linecache
import sys
import types
from collections.abc import Iterator
from typing import Any

import pytest
import torch

import engine
from tests.engine.trace.graph_breaks import break_everywhere_functions
from tests.engine.trace.harness import equal_outcomes

SOURCE = inspect.getsource(break_everywhere_functions)
BREAKS = (
    "print('here', TENSOR.shape)",
    "engine.graph_break()",
    "NOTED.append(TENSOR.sum().item())",
    "NOTED.append(1) if TENSOR.sum() > 0 else NOTED.append(2)",
    "print(f'{TENSOR.mean().item():.3f}')",
)
NAMES = [
    n
    for n, f in vars(break_everywhere_functions).items()
    if isinstance(f, types.FunctionType)
    and f.__module__ == break_everywhere_functions.__name__
    and list(inspect.signature(f).parameters) == ["x"]
]


def statement_lists(tree: ast.AST) -> Iterator[list[ast.stmt]]:
    """Lists of statements inside functions."""
    for function in ast.walk(tree):
        if isinstance(function, ast.FunctionDef):
            for node in ast.walk(function):
                for field in ("body", "orelse", "finalbody"):
                    found = getattr(node, field, None)
                    if (
                        isinstance(found, list)
                        and found
                        and isinstance(found[0], ast.stmt)
                        and not isinstance(node, ast.ClassDef)
                    ):
                        yield found


def reached_functions(tree: ast.Module, name: str) -> set[str]:
    """Top-level definitions that a function uses, itself included."""
    table = {node.name: node for node in tree.body if isinstance(node, (ast.FunctionDef, ast.ClassDef))}
    seen: set[str] = set()
    todo = [name]
    while todo:
        current = todo.pop()
        if current in seen or current not in table:
            continue
        seen.add(current)
        todo += [n.id for n in ast.walk(table[current]) if isinstance(n, ast.Name)]
    return seen


def break_places(name: str) -> int:
    """How many places a break can be put at in a function and in those that it calls."""
    return len(_places(ast.parse(SOURCE), name))


def _places(tree: ast.Module, name: str) -> list[tuple[list[ast.stmt], int]]:
    wanted = reached_functions(tree, name) | ({"Layer"} if name == "modules" else set())
    found: dict[tuple[int, int], tuple[list[ast.stmt], int]] = {}
    for node in tree.body:
        if getattr(node, "name", None) in wanted:
            for block in statement_lists(node):
                for n in range(len(block)):
                    if not isinstance(block[n], (ast.Nonlocal, ast.Global)):
                        found[id(block), n] = (block, n)
    return list(found.values())


def with_break(name: str, place: int, statement: str) -> types.ModuleType:
    """The bodies as a module of their own, with a break put in front of one statement."""
    tree = ast.parse(SOURCE)
    block, n = _places(tree, name)[place]
    block.insert(n, ast.parse(statement).body[0])
    file = f"<{name} {place} {statement}>"
    text = ast.unparse(ast.fix_missing_locations(tree))
    linecache.cache[file] = (len(text), None, text.splitlines(keepends=True), file)
    module = types.ModuleType("bodies_with_a_break")
    sys.modules[module.__name__] = module  # dataclasses look their module up
    vars(module).update(engine=engine, NOTED=[], TENSOR=torch.arange(4.0) - 1)
    exec(compile(text, file, "exec"), vars(module))
    return module


def outcome(module: types.ModuleType, run: Any, x: torch.Tensor) -> dict[str, Any]:
    """All that a person could notice of one call."""
    printed = io.StringIO()
    torch.manual_seed(0)
    seen: dict[str, Any] = {"x": x}
    with contextlib.redirect_stdout(printed):
        try:
            seen["result"] = comparable(run(x))
        except Exception as error:
            seen["error"] = (type(error).__name__, str(error), repr(error.__cause__), repr(error.__context__))
    seen |= {"printed": printed.getvalue(), "grad": torch.is_grad_enabled(), "random": torch.rand(1)}
    return seen | {"noted": copy.copy(module.NOTED), "counter": module.COUNTER, "calls": module.LAYER.calls}


def comparable(value: Any) -> Any:
    """A result without the classes of its module, which differ between two runs."""
    if isinstance(value, (list, tuple)):
        return [type(value).__name__, *map(comparable, value)]
    if isinstance(value, dict):
        return {k: comparable(v) for k, v in value.items()}
    if hasattr(value, "__dict__") and not isinstance(value, (torch.Tensor, type)):
        return [type(value).__name__, comparable(vars(value))]
    return value


def check(name: str, place: int, statement: str) -> list[str]:
    """Compare a variant with plain Python in three calls; return kinds of skipped frames."""
    engine.reset()
    expected_in, actual_in = with_break(name, place, statement), with_break(name, place, statement)
    inputs = [torch.arange(12.0).reshape(3, 4) / 7, -torch.arange(12.0).reshape(3, 4), torch.ones(2, 4)]
    with engine.record() as session:
        run = engine.compile(getattr(actual_in, name), backend="eager")
        for n, x in enumerate(inputs):
            expected = outcome(expected_in, getattr(expected_in, name), x.clone())
            actual = outcome(actual_in, run, x.clone())
            assert equal_outcomes(expected, actual), (
                f"{name} at {place}, {statement}, call {n}\nexpected {expected}\n     got {actual}"
            )
    told = [b for c in session.compilations if c.trace is not None for b in c.trace.breaks]
    assert not [b for b in told if b.kind == "internal"], told
    assert not session.failures
    return [f"{b.kind}: {b.context}" for b in told if b.skips_frame and b.kind != "raises"]


@pytest.mark.parametrize("name", NAMES)
def test_breaks_at_statements(name: str) -> None:
    """Calls end as in plain Python, whatever breaks the graph at whichever statement.

    This test takes every seventh statement, and varies the kind of break.
    """
    places = break_places(name)
    for place in range(len(name) % min(places, 7), places, 7):
        check(name, place, BREAKS[(place // 7 + len(name)) % len(BREAKS)])


@pytest.mark.slow
@pytest.mark.parametrize("statement", BREAKS)
@pytest.mark.parametrize("name", NAMES)
def test_every_break_at_every_statement(name: str, statement: str) -> None:
    """Each kind of break at each statement."""
    for place in range(break_places(name)):
        check(name, place, statement)
