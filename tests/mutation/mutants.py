"""Mutants of the engine, chosen by a seed: one changed condition, constant or statement."""

from __future__ import annotations

import ast
import copy
import difflib
import functools
import importlib.machinery
import pathlib
import random
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

ROOT = pathlib.Path(__file__).parents[2]
TESTS = {
    "engine/guards": ("tests/engine/guards",),
    "engine/ir/guards": ("tests/engine/guards",),
    "engine/aot/checks": ("tests/engine/aot/checks",),
    "engine/lowering/ops": ("tests/engine/lowering/test_values_match_eager.py",),
}
"""Folders whose files are mutated, with the tests that must notice."""

_OPPOSITES: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.Lt: ast.GtE,
    ast.GtE: ast.Lt,
    ast.Gt: ast.LtE,
    ast.LtE: ast.Gt,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
}


@dataclass(frozen=True)
class Mutant:
    """One change: the ``position``-th node of a file's syntax tree, and what happens to it."""

    path: str
    position: int
    change: str

    @property
    def tests(self) -> tuple[str, ...]:
        """Return the tests that cover the file."""
        return next(tests for folder, tests in TESTS.items() if self.path.startswith(f"{folder}/"))

    def tree(self) -> ast.Module:
        """Return the changed syntax tree of the file."""
        tree = ast.parse((ROOT / self.path).read_text(encoding="utf-8"))
        node = list(ast.walk(tree))[self.position]
        made = _CHANGES[self.change](copy.deepcopy(node))
        return ast.fix_missing_locations(_Replace(node, ast.copy_location(made, node)).visit(tree))  # type: ignore[no-any-return]

    def difference(self) -> str:
        """Return the change as lines with - and +."""
        old = ast.unparse(ast.parse((ROOT / self.path).read_text(encoding="utf-8"))).splitlines()
        lines = difflib.unified_diff(old, ast.unparse(self.tree()).splitlines(), lineterm="", n=1)
        return "\n".join([self.path, *list(lines)[2:]])

    def install(self) -> None:
        """Let this process import the changed file; it must not have been imported."""
        path, code = str(ROOT / self.path), compile(self.tree(), str(ROOT / self.path), "exec")
        original = importlib.machinery.SourceFileLoader.get_code

        def get_code(loader: Any, name: str) -> Any:
            return code if loader.path == path else original(loader, name)

        importlib.machinery.SourceFileLoader.get_code = get_code  # type: ignore[method-assign, assignment]


class _Replace(ast.NodeTransformer):
    def __init__(self, old: ast.AST, new: ast.AST) -> None:
        self._old, self._new = old, new

    def visit(self, node: ast.AST) -> Any:
        return self._new if node is self._old else self.generic_visit(node)


def _flip_comparison(node: Any) -> ast.AST:
    node.ops = [_OPPOSITES[type(node.ops[0])]()]
    return node  # type: ignore[no-any-return]


def _add_one(node: Any) -> ast.AST:
    return ast.Constant(node.value + 1)


def _negate_condition(node: Any) -> ast.AST:
    node.test = ast.UnaryOp(ast.Not(), node.test)
    return node  # type: ignore[no-any-return]


def _swap_and_or(node: Any) -> ast.AST:
    node.op = ast.And() if isinstance(node.op, ast.Or) else ast.Or()
    return node  # type: ignore[no-any-return]


def _drop_statement(node: Any) -> ast.AST:
    return ast.Pass()


_CHANGES = {
    "flip comparison": _flip_comparison,
    "add one": _add_one,
    "negate condition": _negate_condition,
    "swap and, or": _swap_and_or,
    "drop statement": _drop_statement,
}


def _changes_of(node: ast.AST) -> Iterator[str]:
    """Yield the changes that a node allows."""
    match node:
        case ast.Compare(ops=[_]):
            yield "flip comparison"
        case ast.Constant(value=int() as value) if not isinstance(value, bool):
            yield "add one"
        case ast.If() | ast.IfExp() | ast.While():
            yield "negate condition"
        case ast.BoolOp():
            yield "swap and, or"
        case ast.Raise() | ast.AugAssign() | ast.Expr(value=ast.Call()):
            yield "drop statement"


@functools.cache
def all_mutants() -> tuple[Mutant, ...]:
    """Return every mutant: the changes inside functions of the mutated folders."""
    found = []
    for folder in TESTS:
        for path in sorted((ROOT / folder).rglob("*.py")):
            tree = ast.parse(path.read_text(encoding="utf-8"))
            inside = {n for f in ast.walk(tree) if isinstance(f, ast.FunctionDef) for s in f.body for n in ast.walk(s)}
            for position, node in enumerate(ast.walk(tree)):
                if node in inside:
                    name = path.relative_to(ROOT).as_posix()
                    found += [Mutant(name, position, change) for change in _changes_of(node)]
    return tuple(found)


def mutant_of(seed: int) -> Mutant:
    """Return the mutant of a seed."""
    return random.Random(seed).choice(all_mutants())
