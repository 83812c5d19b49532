"""Remove statements, calls and arguments of a program while it still differs."""

from __future__ import annotations

import ast
import copy
import time
import warnings
from collections.abc import Callable, Iterator
from typing import Any

_BODIES = ("body", "orelse", "finalbody", "handlers", "cases")
_LISTS = ("args", "keywords", "elts", "decorator_list")


def shrink(text: str, still_differs: Callable[[str], bool], seconds: float) -> str:
    """Return the smallest program found in the given time for which ``still_differs`` holds."""
    end = time.monotonic() + seconds
    is_smaller = True
    while is_smaller and time.monotonic() < end:
        is_smaller = False
        position = 0
        while time.monotonic() < end:
            smaller = _nth_smaller(text, position)
            if smaller is None:
                break
            if smaller != text and len(smaller) < len(text) and still_differs(smaller):
                text, is_smaller = smaller, True  # the next candidate has moved to this position
            else:
                position += 1
    return text


def _nth_smaller(text: str, position: int) -> str | None:
    tree = ast.parse(text)
    for number, change in enumerate(_changes(tree)):
        if number == position:
            change()
            try:
                smaller = ast.unparse(ast.fix_missing_locations(tree))
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore")
                    compile(smaller, "<smaller>", "exec")
            except (SyntaxError, ValueError):
                return text
            return smaller
    return None


def _changes(tree: ast.Module) -> Iterator[Callable[[], None]]:
    """Changes to a tree, large ones first: halves of blocks, statements, expressions."""
    nodes = [node for top in reversed(tree.body) for node in ast.walk(top)] + [
        tree
    ]  # the program is the last definition
    blocks = [(n, f) for n in nodes for f in _BODIES if isinstance(getattr(n, f, None), list) and getattr(n, f)]
    for node, name in blocks:
        block = getattr(node, name)
        if len(block) > 3:
            yield _remover(node, name, 0, len(block) // 2)
            yield _remover(node, name, len(block) // 2, len(block))
    for node, name in blocks:
        for n in reversed(range(len(getattr(node, name)))):
            yield _remover(node, name, n, n + 1)
            statement = getattr(node, name)[n]
            for inner in ("body", "orelse", "finalbody"):
                if isinstance(getattr(statement, inner, None), list) and not isinstance(
                    statement, (ast.FunctionDef, ast.ClassDef)
                ):
                    yield _unwrapper(node, name, n, inner)
    for node in nodes:
        for name in _LISTS:
            for n in range(len(getattr(node, name, None) or []) if isinstance(getattr(node, name, None), list) else 0):
                yield _remover(node, name, n, n + 1)
    for node in nodes:
        for name, value in ast.iter_fields(node):
            if isinstance(value, ast.expr):
                for child in _parts(value):
                    yield _setter(node, name, child)
            elif isinstance(value, list):
                for n, item in enumerate(value):
                    if isinstance(item, ast.expr):
                        for child in _parts(item):
                            yield _item_setter(value, n, child)


def _parts(value: ast.expr) -> list[ast.expr]:
    """Expressions that may stand for a whole one."""
    if isinstance(value, (ast.Name, ast.Constant)) or not isinstance(getattr(value, "ctx", ast.Load()), ast.Load):
        return []
    children = [c for c in ast.iter_child_nodes(value) if isinstance(c, ast.expr)]
    if isinstance(value, ast.Call) and isinstance(value.func, ast.Attribute):
        children = [value.func.value, *value.args]
    return [*children, ast.Constant(1)]


def _remover(node: ast.AST, name: str, first: int, last: int) -> Callable[[], None]:
    def change() -> None:
        block: list[Any] = getattr(node, name)
        del block[first:last]
        if not block and name == "body":
            block.append(ast.Pass())

    return change


def _unwrapper(node: ast.AST, name: str, n: int, inner: str) -> Callable[[], None]:
    def change() -> None:
        block: list[Any] = getattr(node, name)
        block[n : n + 1] = getattr(block[n], inner)

    return change


def _setter(node: ast.AST, name: str, child: ast.expr) -> Callable[[], None]:
    return lambda: setattr(node, name, copy.deepcopy(child))


def _item_setter(block: list[Any], n: int, child: ast.expr) -> Callable[[], None]:
    return lambda: block.__setitem__(n, copy.deepcopy(child))
