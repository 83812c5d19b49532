"""Mutants of the engine, chosen by a seed: one changed condition, constant or statement."""

from __future__ import annotations

import ast
import difflib
import functools
import pathlib
import random
from collections.abc import Iterator
from dataclasses import dataclass

ROOT = pathlib.Path(__file__).parents[2]
VALUES_TEST = "tests/engine/lowering/test_values_match_eager.py"
CPU_VALUES_TEST = "tests/engine/kernels/cpu/test_cpu_kernels.py"
"""Tests of the same cases: in Triton's interpreter, and in kernels for a CPU."""
TESTS = {
    "engine/guards": ("tests/engine/guards",),
    "engine/ir/guards": ("tests/engine/guards",),
    "engine/aot/checks": ("tests/engine/aot/checks",),
    "engine/lowering/ops": (
        VALUES_TEST,
        "tests/engine/lowering/test_fallback_catalog.py",
        "tests/engine/lowering/test_index_bounds_checks.py",
        "tests/engine/lowering/test_op_decisions.py",
        "tests/engine/lowering/test_scheduler.py",
    ),
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
    """One change: the text of a file from ``start`` to ``end`` becomes ``text``."""

    path: str
    line: int
    """First line of the innermost statement around the change."""
    change: str
    start: int
    end: int
    text: str

    @property
    def tests(self) -> tuple[str, ...]:
        """Return the tests that cover the file."""
        return next(tests for folder, tests in TESTS.items() if self.path.startswith(f"{folder}/"))

    def source(self) -> str:
        """Return the changed text of the file."""
        old = (ROOT / self.path).read_bytes()
        return (old[: self.start] + self.text.encode() + old[self.end :]).decode()

    def difference(self) -> str:
        """Return the change as lines with - and +."""
        old = (ROOT / self.path).read_text(encoding="utf-8").splitlines()
        lines = difflib.unified_diff(old, self.source().splitlines(), lineterm="", n=1)
        return "\n".join([self.path, *list(lines)[2:]])


def _changes_of(node: ast.AST) -> Iterator[tuple[str, ast.expr | ast.stmt, str]]:
    """Yield the changes that a node allows: name, the node to replace, its new text."""
    match node:
        case ast.Compare(left=left, ops=[op], comparators=[right]):
            yield "flip comparison", node, f"({ast.unparse(ast.Compare(left, [_OPPOSITES[type(op)]()], [right]))})"
        case ast.Constant(value=int() as value) if not isinstance(value, bool):
            yield "add one", node, str(value + 1)
        case ast.If(test=test) | ast.IfExp(test=test) | ast.While(test=test):
            yield "negate condition", test, f"(not ({ast.unparse(test)}))"
        case ast.BoolOp(op=op, values=values):
            yield "swap and, or", node, f"({ast.unparse(ast.BoolOp(_opposite(op), values))})"
        case ast.Raise() | ast.AugAssign() | ast.Expr(value=ast.Call()):
            yield "drop statement", node, "pass"


def _opposite(op: ast.boolop) -> ast.boolop:
    return ast.And() if isinstance(op, ast.Or) else ast.Or()


def _mutants_in(path: str) -> Iterator[Mutant]:
    """Yield the mutants of a file: changes inside functions."""
    source = (ROOT / path).read_bytes()
    offsets = [0]
    for line in source.splitlines(keepends=True):
        offsets.append(offsets[-1] + len(line))
    for node, line in _nodes_inside(ast.parse(source)):
        for change, old, text in _changes_of(node):
            start = offsets[old.lineno - 1] + old.col_offset
            end = offsets[(old.end_lineno or 0) - 1] + (old.end_col_offset or 0)
            yield Mutant(path, line, change, start, end, text)


def _nodes_inside(node: ast.AST, line: int = 0) -> Iterator[tuple[ast.AST, int]]:
    """Yield the nodes inside functions, each with the first line of its statement.

    Formatted text is left out: before Python 3.12 its nodes have no positions.
    """
    for name, value in ast.iter_fields(node):
        for child in value if isinstance(value, list) else [value]:
            if not isinstance(child, ast.AST) or isinstance(child, ast.JoinedStr):
                continue
            is_body = isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)) and name == "body"
            inner = child.lineno if isinstance(child, ast.stmt) and (line or is_body) else line
            if inner:
                yield child, inner
            yield from _nodes_inside(child, inner)


@functools.cache
def all_mutants() -> tuple[Mutant, ...]:
    """Return every mutant of the mutated folders."""
    paths = [path for folder in TESTS for path in sorted((ROOT / folder).rglob("*.py"))]
    return tuple(m for path in paths for m in _mutants_in(path.relative_to(ROOT).as_posix()))


def mutant_of(seed: int, folder: str = "") -> Mutant:
    """Return the mutant of a seed, among those of a folder."""
    return random.Random(seed).choice([m for m in all_mutants() if m.path.startswith(folder)])
