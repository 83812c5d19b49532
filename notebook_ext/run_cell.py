"""Runs one cell once in the user's namespace; its top-level calls go through the roots."""

from __future__ import annotations

import ast
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import CodeType, FunctionType, MethodType
from typing import Any

import torch
from IPython.core.displayhook import DisplayHook
from IPython.core.error import UsageError
from IPython.core.interactiveshell import InteractiveShell

from engine.ir.user_code_files import cell_names
from engine.records.runtime import SkippedRecord
from engine.records.session import Session
from engine.runtime.dispatch.dispatcher import dispatcher_state_of
from notebook_ext import compile_cell_body, rewrite_calls
from notebook_ext.call_recorder import CallRecorder
from notebook_ext.compile_roots import Roots, is_model_entry_point, python_call_method
from notebook_ext.compilers import CellCompiler


@dataclass(frozen=True)
class Cell:
    """Parsed cell: its statements, and the file name in tracebacks and ``inspect.getsource``."""

    file: str
    text: str
    tree: ast.Module
    suppresses_display: bool
    """True if the last token is a semicolon: the last value is not displayed."""

    @property
    def bound_names(self) -> frozenset[str]:
        """Names that the top level of the cell binds."""
        return frozenset(_bound(self.tree))


def _bound(tree: ast.Module) -> set[str]:
    names: set[str] = set()
    for node in rewrite_calls.top_level_nodes(tree):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            names.add(node.name)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            names.add(node.id)
        elif isinstance(node, (ast.Import, ast.ImportFrom)):
            names.update(alias.asname or alias.name.partition(".")[0] for alias in node.names)
    return names


def parse_cell(shell: InteractiveShell, body: str) -> Cell:
    """Parse the body of a cell as IPython does, including IPython's own magics.

    Raises:
        SyntaxError: the body is not Python.
        UsageError: it awaits at its top level.
    """
    text = shell.transform_cell(body)
    number = cell_number(shell)
    file = shell.compile.cache(text, number, raw_code=body)
    cell_names[file] = f"cell {number}"
    tree = shell.transform_ast(shell.compile.ast_parse(text, filename=file))
    if rewrite_calls.has_top_level_await(tree):
        raise UsageError(
            "%%compile cannot run a cell that awaits at its top level: move the await into a cell of its own."
        )
    return Cell(file, text, tree, DisplayHook.semicolon_at_end_of_expression(text))


def cell_number(shell: InteractiveShell) -> int:
    """Return the number in the prompt of the running cell, else of the next one."""
    result = shell.displayhook.exec_result
    number = getattr(result, "execution_count", None)
    return number if isinstance(number, int) else int(shell.execution_count)


def run_cell(
    shell: InteractiveShell,
    cell: Cell,
    subject: CellCompiler,
    session: Session,
    names: tuple[str, ...],
    tape: CallRecorder | None = None,
) -> Roots:
    """Run the cell and restore all roots afterwards, also after an error.

    Exceptions of user code propagate unchanged.
    """
    roots = Roots(subject, session, shell.user_ns, cell.file, names, tape)
    roots.compile_named()
    try:
        if names:
            _StatementRunner(shell, cell, roots, cell.tree.body).run()
        else:
            _run_unnamed(shell, cell, subject, session, roots)
    finally:
        roots.restore()
    return roots


def _run_unnamed(shell: InteractiveShell, cell: Cell, subject: CellCompiler, session: Session, roots: Roots) -> None:
    statements = cell.tree.body
    start = compile_cell_body.setup_length(statements)
    _StatementRunner(shell, cell, roots, statements[:start], is_end=start == len(statements)).run()
    remaining = statements[start:]
    if not remaining:
        _record_not_compiled(session, roots, "it only imports and defines", "Call a function or a module in the cell.")
        return
    verdict = compile_cell_body.check_eligibility(remaining, shell.user_ns, lambda value: is_root(value, shell.user_ns))
    if verdict.is_eligible:
        _run_as_frame(shell, cell, subject, remaining)
        roots.compiled.append("cell")
        return
    _StatementRunner(shell, cell, roots, remaining).run()
    if not verdict.has_roots:
        _record_not_compiled(
            session,
            roots,
            verdict.reason,
            "Put the tensor code in a function and call it, or name what to compile: %%compile NAME",
        )


def _record_not_compiled(session: Session, roots: Roots, reason: str, hint: str) -> None:
    """Record that the cell body ran as Python, if nothing else was compiled."""
    if not roots.compiled and not session.compilations:
        session.add_skipped(SkippedRecord("cell", f"runs as Python because {reason}", hint))


def is_root(value: Any, namespace: dict[str, Any]) -> bool:
    """Return True if a call of this value at the top level of a cell makes it a root."""
    if isinstance(value, torch.nn.Module):
        return True
    if isinstance(value, MethodType):
        if is_model_entry_point(value):
            return True
        value = value.__func__
    if not isinstance(value, FunctionType):
        call = python_call_method(value)
        return call is not None and call.__globals__ is namespace
    inner: Any = value
    while hasattr(inner, "__wrapped__"):
        inner = inner.__wrapped__
    return dispatcher_state_of(value) is not None or getattr(inner, "__globals__", None) is namespace


class _StatementRunner:
    """Runs statements one after another as IPython does.

    Each statement is a module of its own. The last value is displayed.
    """

    def __init__(
        self, shell: InteractiveShell, cell: Cell, roots: Roots, statements: Sequence[ast.stmt], *, is_end: bool = True
    ) -> None:
        self._shell = shell
        self._cell = cell
        self._roots = roots
        self._statements = list(statements)
        self._is_end = is_end
        self._definitions = rewrite_calls.called_names(cell.tree)

    def run(self) -> None:
        """Run the statements in turn, with calls rewritten."""
        for statement, mode in self._modes():
            tree: ast.Module | ast.Interactive = rewrite_calls.rewrite_calls(
                ast.Module([statement], []), self._definitions
            )
            if mode == "single":
                tree = ast.Interactive(tree.body)
            execute(
                self._shell, rewrite_calls.bind_hook(compile_tree(self._shell, self._cell, tree, mode), self._roots)
            )
            self._roots.compile_named()

    def _modes(self) -> list[tuple[ast.stmt, str]]:
        interactivity = self._shell.ast_node_interactivity
        if not self._statements or (not self._is_end and interactivity != "all"):
            return [(s, "exec") for s in self._statements]
        if interactivity == "last_expr_or_assign" and (name := _assigned_name(self._statements[-1])):
            shown = ast.copy_location(ast.Expr(ast.Name(name, ast.Load())), self._statements[-1])
            self._statements.append(ast.fix_missing_locations(shown))
        if interactivity == "all":
            modes = ["single"] * len(self._statements)
        else:
            is_shown = interactivity == "last" or (
                interactivity != "none" and isinstance(self._statements[-1], ast.Expr)
            )
            modes = ["exec"] * (len(self._statements) - 1) + ["single" if is_shown else "exec"]
        if self._cell.suppresses_display:
            modes[-1] = "exec"
        return list(zip(self._statements, modes, strict=True))


def _assigned_name(statement: ast.stmt) -> str:
    targets = statement.targets if isinstance(statement, ast.Assign) else [getattr(statement, "target", None)]
    is_assignment = isinstance(statement, (ast.Assign, ast.AugAssign, ast.AnnAssign))
    return targets[0].id if is_assignment and len(targets) == 1 and isinstance(targets[0], ast.Name) else ""


def _run_as_frame(shell: InteractiveShell, cell: Cell, subject: CellCompiler, statements: Sequence[ast.stmt]) -> None:
    shows = (
        not cell.suppresses_display and shell.ast_node_interactivity != "none" and isinstance(statements[-1], ast.Expr)
    )
    function = compile_cell_body.cell_function(
        statements,
        returns_last=shows,
        compile_module=lambda tree: compile_tree(shell, cell, tree, "exec"),
        namespace=shell.user_ns,
    )
    value = subject.compile_function(function, role="cell")()
    if shows:
        shell.displayhook(value)


def compile_tree(shell: InteractiveShell, cell: Cell, tree: ast.AST, mode: str) -> CodeType:
    """Compile a tree with the future statements that are active in the shell.

    Raises:
        SyntaxError: the tree is valid, but Python rejects its meaning (``return`` outside a function).
    """
    compiler: Callable[..., CodeType] = shell.compile
    return compiler(tree, cell.file, mode)


def execute(shell: InteractiveShell, code: CodeType) -> None:
    """Run code in the user's namespace."""
    exec(code, shell.user_global_ns, shell.user_ns)
