"""Compiles the body of a cell as one frame if it calls no root but computes with tensors.

The body becomes a function whose assigned names are globals.
"""

from __future__ import annotations

import ast
import builtins
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import BuiltinFunctionType, CodeType, FunctionType, MethodDescriptorType, MethodType, ModuleType
from typing import Any

import torch

from notebook_ext.rewrite_calls import top_level_nodes

ALLOWED_STATEMENTS = (
    ast.Assign,
    ast.AugAssign,
    ast.Expr,
    ast.If,
    ast.For,
    ast.While,
    ast.With,
    ast.Pass,
    ast.Assert,
    ast.Break,
    ast.Continue,
)
SETUP_STATEMENTS = (ast.Import, ast.ImportFrom, ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
DISALLOWED_NODES = (
    ast.Delete,
    ast.Global,
    ast.Nonlocal,
    ast.NamedExpr,
    ast.Yield,
    ast.YieldFrom,
    ast.Lambda,
    ast.Return,
    ast.Raise,
)
NAMESPACE_READERS = frozenset(
    {"locals", "globals", "vars", "dir", "eval", "exec", "input", "breakpoint", "get_ipython"}
)
NODE_DESCRIPTIONS = {
    ast.FunctionDef: "a function definition", ast.ClassDef: "a class definition", ast.Import: "an import", ast.ImportFrom: "an import",
    ast.Delete: "a del", ast.Lambda: "a lambda", ast.Try: "a try", ast.Match: "a match", ast.AnnAssign: "an annotated assignment",
    ast.NamedExpr: "a := expression", ast.Raise: "a raise",
}  # fmt: skip
TRAINING_METHODS = frozenset({"backward", "step", "zero_grad"})
NON_COMPUTE_FUNCTIONS = frozenset(
    {"manual_seed", "no_grad", "enable_grad", "inference_mode", "set_default_dtype", "load", "save", "set_num_threads"}
)


@dataclass(frozen=True)
class FrameEligibility:
    """Eligibility of statements to run as one compiled frame.

    ``reason`` says why they are not eligible. ``has_roots`` is True if they call roots.
    """

    is_eligible: bool
    reason: str = ""
    has_roots: bool = False


def setup_length(statements: Sequence[ast.stmt]) -> int:
    """Return the number of leading statements that only import or define names.

    They run as Python before the frame.
    """
    count = 0
    while count < len(statements) and isinstance(statements[count], SETUP_STATEMENTS):
        count += 1
    return count


def check_eligibility(
    statements: Sequence[ast.stmt], namespace: Mapping[str, Any], is_root: Callable[[Any], bool]
) -> FrameEligibility:
    """Check whether statements can run as one frame, given the current values of all names.

    The cell must run exactly once and as written. So a call whose target is not certain makes the cell run
    as Python.
    """
    judge = _EligibilityChecker(namespace, is_root)
    for statement in statements:
        judge.statement(statement)
    if judge.roots:
        return FrameEligibility(False, f"it calls {judge.roots[0]}", has_roots=True)
    if judge.obstacles:
        return FrameEligibility(False, judge.obstacles[0])
    if not judge.computes:
        return FrameEligibility(False, "it does not compute with tensors")
    return FrameEligibility(True)


class _EligibilityChecker:
    def __init__(self, namespace: Mapping[str, Any], is_root: Callable[[Any], bool]) -> None:
        self._namespace = namespace
        self._is_root = is_root
        self._assigned: set[str] = set()
        self.roots: list[str] = []
        self.obstacles: list[str] = []
        self.computes = False

    def statement(self, statement: ast.stmt) -> None:
        for node in top_level_nodes(statement):
            if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
                self._assigned.add(node.id)
        for node in top_level_nodes(statement):
            self._node(node)

    def _node(self, node: ast.AST) -> None:
        if isinstance(node, DISALLOWED_NODES) or (
            isinstance(node, ast.stmt) and not isinstance(node, ALLOWED_STATEMENTS)
        ):
            self.obstacles.append(
                f"line {getattr(node, 'lineno', '?')} holds {NODE_DESCRIPTIONS.get(type(node), 'something that is not plain computing')}"
            )
        elif isinstance(node, ast.Call):
            self._call(node)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load):
            self.computes |= isinstance(self._namespace.get(node.id), torch.Tensor)

    def _call(self, node: ast.Call) -> None:
        text = ast.unparse(node.func)
        if isinstance(node.func, ast.Attribute) and node.func.attr in TRAINING_METHODS:
            self.obstacles.append(f"it calls {text}()")
            return
        is_resolved, value = self._resolve(node.func)
        if is_resolved:
            self._known_call(text, value)
        elif not (isinstance(node.func, ast.Attribute) and callable(getattr(torch.Tensor, node.func.attr, None))):
            self.obstacles.append(f"what {text}(...) calls is known only once line {node.lineno} runs")

    def _known_call(self, text: str, value: Any) -> None:
        if self._is_root(value) or (isinstance(value, type) and issubclass(value, torch.nn.Module)):
            self.roots.append(text)
        elif text in NAMESPACE_READERS:
            self.obstacles.append(f"{text}() looks at the cell's own frame")
        elif not isinstance(
            value, (type, BuiltinFunctionType, FunctionType, MethodDescriptorType, MethodType)
        ) and not _is_torch(value):
            self.obstacles.append(f"{text} is an object of type {type(value).__name__}")
        elif _is_torch(value) and text.rpartition(".")[2] not in NON_COMPUTE_FUNCTIONS:
            self.computes = True

    def _resolve(self, func: ast.expr) -> tuple[bool, Any]:
        """Return (is known, value) of a dotted name, without running user code."""
        if isinstance(func, ast.Name):
            if func.id in self._assigned:
                return False, None
            if func.id in self._namespace:
                return True, self._namespace[func.id]
            return hasattr(builtins, func.id), getattr(builtins, func.id, None)
        if not isinstance(func, ast.Attribute):
            return False, None
        is_resolved, owner = self._resolve(func.value)
        if (
            not is_resolved
            or not isinstance(owner, (ModuleType, torch.nn.Module, torch.Tensor))
            or not hasattr(owner, func.attr)
        ):
            return False, None
        return True, getattr(owner, func.attr)


def _is_torch(value: Any) -> bool:
    module = getattr(value, "__module__", None) or getattr(type(value), "__module__", "")
    return isinstance(module, str) and module.split(".")[0] == "torch"


def cell_function(
    statements: Sequence[ast.stmt],
    *,
    returns_last: bool,
    compile_module: Callable[[ast.Module], CodeType],
    namespace: dict[str, Any],
) -> FunctionType:
    """Return the statements as one function without arguments; its globals are ``namespace``.

    With ``returns_last`` the function returns the value of the last expression.
    """
    body = list(statements)
    if returns_last and isinstance(body[-1], ast.Expr):
        body[-1] = ast.copy_location(ast.Return(body[-1].value), body[-1])
    assigned = sorted(
        {
            n.id
            for s in statements
            for n in top_level_nodes(s)
            if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)
        }
    )
    first = statements[0]
    if assigned:
        body.insert(0, ast.copy_location(ast.Global(assigned), first))
    empty = ast.arguments(posonlyargs=[], args=[], kwonlyargs=[], kw_defaults=[], defaults=[])
    definition = ast.copy_location(ast.FunctionDef("cell", empty, body, [], None), first)
    if "type_params" in ast.FunctionDef._fields:
        definition.type_params = []  # type: ignore[attr-defined]
    module = ast.fix_missing_locations(ast.Module([definition], []))
    code = next(c for c in compile_module(module).co_consts if isinstance(c, CodeType))
    # Tracebacks show the name of the code object, views show the name of the function. An error must read as one in the cell.
    function = FunctionType(code.replace(co_name="<module>", co_qualname="<module>"), namespace, "cell")
    function.__qualname__ = "cell"
    return function
