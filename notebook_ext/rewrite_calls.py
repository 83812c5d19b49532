"""Rewrites the AST of a cell so that each top-level call goes through a hook.

Every source position stays unchanged.
"""

from __future__ import annotations

import ast
import uuid
from types import CodeType
from typing import Any, Protocol, TypeVar

FunctionNode = TypeVar("FunctionNode", ast.FunctionDef, ast.AsyncFunctionDef)

HOOK_PLACEHOLDER = f"notebook_ext.rewrite_calls {uuid.uuid4()}"
"""String constant that stands for the hook until the code is compiled.

No name has to be added to the user's namespace.
"""

METHOD_CALL_ARG_LIMIT = 30
"""Number of arguments from which CPython compiles a method call as an ordinary call."""


class CallHook(Protocol):
    """Hook through which a rewritten cell's calls and definitions go."""

    def replace_callee(self, called: Any) -> Any:
        """Return the object to call in place of ``called``."""
        ...

    def replace_definition(self, function: Any) -> Any:
        """Return the object to bind in place of a function that the cell defines and calls later."""
        ...


def rewrite_calls(tree: ast.Module, definitions: frozenset[str]) -> ast.Module:
    """Rewrite the top-level calls of a tree to go through the hook.

    Functions named in ``definitions`` are passed to the hook when they are defined. Top level means all
    code that runs when the cell runs: also bodies of ``for``, ``with``, ``if`` and comprehensions, but not
    bodies of functions and classes.
    """
    return _CallRewriter(definitions).visit(tree)  # type: ignore[no-any-return]


def bind_hook(code: CodeType, hook: CallHook) -> CodeType:
    """Return compiled code in which the hook replaces its placeholder, also in comprehensions."""
    constants = tuple(
        hook if c == HOOK_PLACEHOLDER else bind_hook(c, hook) if isinstance(c, CodeType) else c for c in code.co_consts
    )
    return code.replace(co_consts=constants)


class _CallRewriter(ast.NodeTransformer):
    def __init__(self, definitions: frozenset[str]) -> None:
        self._definitions = definitions

    def visit_Call(self, node: ast.Call) -> ast.AST:
        position = _call_position(node)
        self.generic_visit(node)
        node.func = ast.copy_location(ast.Call(_hook("replace_callee", node.func), [node.func], []), node.func)
        node.lineno, node.col_offset, node.end_lineno, node.end_col_offset = position
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
        """Visit the parts that run at definition time: decorators and default values."""
        node.decorator_list = [self.visit(d) for d in node.decorator_list]
        node.args = self.visit(node.args)
        return node


def _hook(method: str, at: ast.AST) -> ast.expr:
    constant = ast.copy_location(ast.Constant(HOOK_PLACEHOLDER), at)
    return ast.copy_location(ast.Attribute(constant, method, ast.Load()), at)


def _call_position(node: ast.Call) -> tuple[int, int, int | None, int | None]:
    """Return the position that CPython gives to a call.

    For a method call that spans several lines it starts at the name of the method.
    """
    func = node.func
    if not isinstance(func, ast.Attribute) or func.end_lineno in (None, node.lineno) or not _is_method_call(node):
        return node.lineno, node.col_offset, node.end_lineno, node.end_col_offset
    assert func.end_lineno is not None
    end = func.end_col_offset or 0
    return func.end_lineno, max(0, end - len(func.attr)), node.end_lineno, node.end_col_offset


def _is_method_call(node: ast.Call) -> bool:
    """Return True if CPython compiles the call as a method call, without a bound method."""
    unpacks = any(isinstance(a, ast.Starred) for a in node.args) or any(k.arg is None for k in node.keywords)
    return not unpacks and len(node.args) + len(node.keywords) + bool(node.keywords) < METHOD_CALL_ARG_LIMIT


def top_level_nodes(tree: ast.AST) -> list[ast.AST]:
    """Return every node that runs when the cell runs.

    Bodies of functions, lambdas and classes are left out.
    """
    nodes: list[ast.AST] = []
    waiting: list[ast.AST] = [tree]
    while waiting:
        node = waiting.pop()
        nodes.append(node)
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            waiting += [*node.decorator_list, node.args]
        elif isinstance(node, ast.Lambda):
            waiting.append(node.args)
        elif isinstance(node, ast.ClassDef):
            waiting += node.decorator_list
        else:
            waiting += ast.iter_child_nodes(node)
    return nodes


def called_names(tree: ast.AST) -> frozenset[str]:
    """Return the names that top-level code calls directly."""
    return frozenset(
        n.func.id for n in top_level_nodes(tree) if isinstance(n, ast.Call) and isinstance(n.func, ast.Name)
    )


def has_top_level_await(tree: ast.AST) -> bool:
    """Return True if top-level code awaits something."""
    return any(
        isinstance(n, (ast.Await, ast.AsyncFor, ast.AsyncWith)) or (isinstance(n, ast.comprehension) and n.is_async)
        for n in top_level_nodes(tree)
    )
