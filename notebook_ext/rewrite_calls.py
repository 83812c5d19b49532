"""Rewrites a cell's syntax tree so that each call at its top level asks a hook what to call; every position stays as it was."""

from __future__ import annotations

import ast
import uuid
from types import CodeType
from typing import Any, Protocol, TypeVar

FunctionNode = TypeVar("FunctionNode", ast.FunctionDef, ast.AsyncFunctionDef)

HOOK_PLACEHOLDER = f"notebook_ext.rewrite_calls {uuid.uuid4()}"
"""A string constant that stands for the hook until the code is compiled; no name appears in the user's namespace."""

METHOD_CALL_ARG_LIMIT = 30
"""From so many arguments on, CPython compiles a method call like any other."""


class CallHook(Protocol):
    """What rewritten code calls."""

    def replace_callee(self, called: Any) -> Any:
        """What to call in place of ``called``."""
        ...

    def replace_definition(self, function: Any) -> Any:
        """What to bind in place of a function that the cell has just defined and calls later."""
        ...


def rewrite_calls(tree: ast.Module, definitions: frozenset[str]) -> ast.Module:
    """The tree with calls of its top level going through the hook, and functions named in ``definitions`` passed to it when defined.

    Top level means what runs when the cell runs: bodies of ``for``, ``with``, ``if`` and comprehensions too, bodies of functions and classes not.
    """
    return _CallRewriter(definitions).visit(tree)  # type: ignore[no-any-return]


def bind_hook(code: CodeType, hook: CallHook) -> CodeType:
    """Compiled code with the hook in its place, in nested comprehensions too."""
    constants = tuple(
        hook if c == HOOK_PLACEHOLDER else bind_hook(c, hook) if isinstance(c, CodeType) else c for c in code.co_consts
    )
    return code.replace(co_consts=constants)


class _CallRewriter(ast.NodeTransformer):
    def __init__(self, definitions: frozenset[str]) -> None:
        self._definitions = definitions

    def visit_Call(self, node: ast.Call) -> ast.AST:
        place = _call_position(node)
        self.generic_visit(node)
        node.func = _call_through_hook("replace_callee", node.func)
        node.lineno, node.col_offset, node.end_lineno, node.end_col_offset = place
        return node

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
        node = self._visit_definition(node)
        if node.name in self._definitions:
            first = node.decorator_list[0] if node.decorator_list else node
            node.decorator_list.insert(0, _hook("replace_definition", first))
        return node

    def visit_AsyncFunctionDef(self, node: ast.AsyncFunctionDef) -> ast.AST:
        return self._visit_definition(node)

    def visit_Lambda(self, node: ast.Lambda) -> ast.AST:
        node.args = self.visit(node.args)
        return node

    def visit_ClassDef(self, node: ast.ClassDef) -> ast.AST:
        node.decorator_list = [self.visit(d) for d in node.decorator_list]
        return node

    def _visit_definition(self, node: FunctionNode) -> FunctionNode:
        """Visit what runs at definition time: decorators and defaults."""
        node.decorator_list = [self.visit(d) for d in node.decorator_list]
        node.args = self.visit(node.args)
        return node


def _hook(method: str, at: ast.AST) -> ast.expr:
    constant = ast.copy_location(ast.Constant(HOOK_PLACEHOLDER), at)
    return ast.copy_location(ast.Attribute(constant, method, ast.Load()), at)


def _call_through_hook(method: str, func: ast.expr) -> ast.expr:
    return ast.copy_location(ast.Call(_hook(method, func), [func], []), func)


def _call_position(node: ast.Call) -> tuple[int, int, int | None, int | None]:
    """Where CPython says that a call is: for a method call that spans lines, from the method's name on."""
    func = node.func
    if not isinstance(func, ast.Attribute) or func.end_lineno in (None, node.lineno) or not _is_method_call(node):
        return node.lineno, node.col_offset, node.end_lineno, node.end_col_offset
    assert func.end_lineno is not None
    end = func.end_col_offset or 0
    return func.end_lineno, max(0, end - len(func.attr)), node.end_lineno, node.end_col_offset


def _is_method_call(node: ast.Call) -> bool:
    """Whether CPython compiles the call as one of a method, without making the bound method first."""
    unpacks = any(isinstance(a, ast.Starred) for a in node.args) or any(k.arg is None for k in node.keywords)
    return not unpacks and len(node.args) + len(node.keywords) + bool(node.keywords) < METHOD_CALL_ARG_LIMIT


def top_level_nodes(tree: ast.AST) -> list[ast.AST]:
    """Every node that runs when the cell runs: bodies of functions, lambdas and classes are left out."""
    found: list[ast.AST] = []
    waiting: list[ast.AST] = [tree]
    while waiting:
        node = waiting.pop()
        found.append(node)
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            waiting += [*node.decorator_list, node.args]
        elif isinstance(node, ast.Lambda):
            waiting.append(node.args)
        elif isinstance(node, ast.ClassDef):
            waiting += node.decorator_list
        else:
            waiting += ast.iter_child_nodes(node)
    return found


def called_names(tree: ast.AST) -> frozenset[str]:
    """Names that the top level calls directly."""
    return frozenset(
        n.func.id for n in top_level_nodes(tree) if isinstance(n, ast.Call) and isinstance(n.func, ast.Name)
    )


def has_top_level_await(tree: ast.AST) -> bool:
    """Whether the top level awaits something."""
    return any(
        isinstance(n, (ast.Await, ast.AsyncFor, ast.AsyncWith)) or (isinstance(n, ast.comprehension) and n.is_async)
        for n in top_level_nodes(tree)
    )
