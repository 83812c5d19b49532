"""Find which tests reach which statement.

``python -m tests.mutation.reach FILE FOLDER...`` writes JSON.
Statements of the mutated files note themselves when they run, so a mutant needs only the tests that reach it.
"""

from __future__ import annotations

import ast
import builtins
import importlib
import importlib.machinery
import json
import pathlib
import sys
import time
from collections.abc import Iterator, Sequence
from typing import Any

import pytest

from tests.mutation.mutants import CPU_VALUES_TEST, ROOT, TESTS, VALUES_TEST

reached: set[tuple[str, int]] = set()
"""Statements that ran since the set was emptied: file and line."""


class _NoteStatements(ast.NodeTransformer):
    """Puts a call before each statement of a function that notes the statement."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._depth = 0

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
        self._depth += 1
        self.generic_visit(node)
        self._depth -= 1
        return node

    def generic_visit(self, node: ast.AST) -> ast.AST:
        super().generic_visit(node)
        if self._depth:
            for name in ("body", "orelse", "finalbody"):
                body = getattr(node, name, None)
                if isinstance(body, list):
                    setattr(node, name, [made for statement in body for made in self._noted(statement)])
        return node

    def _noted(self, statement: ast.stmt) -> Iterator[ast.stmt]:
        if not (isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)):
            call = ast.parse(f"__reach__(({self._path!r}, {statement.lineno}))").body[0]
            for part in ast.walk(call):
                ast.copy_location(part, statement)
            yield call
        yield statement


def note_statements(folders: Sequence[str]) -> None:
    """Let this process import the files of the folders with notes."""
    vars(builtins)["__reach__"] = reached.add
    original = importlib.machinery.SourceFileLoader.get_code

    def get_code(loader: Any, name: str) -> Any:
        path = pathlib.Path(loader.path)
        relative = path.relative_to(ROOT).as_posix() if path.is_relative_to(ROOT) else ""
        if not any(relative.startswith(f"{folder}/") for folder in folders):
            return original(loader, name)
        tree = _NoteStatements(relative).visit(ast.parse(path.read_text(encoding="utf-8")))
        return compile(ast.fix_missing_locations(tree), loader.path, "exec")

    importlib.machinery.SourceFileLoader.get_code = get_code  # type: ignore[method-assign, assignment]


class ReachPlugin:
    """Notes for each passed test its seconds and the statements it reached."""

    def __init__(self) -> None:
        self.found: dict[str, tuple[float, list[tuple[str, int]]]] = {}

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[None]:
        """Note what one test reached, its fixtures included."""
        reached.clear()
        start = time.perf_counter()
        result = yield
        self.found[item.nodeid] = time.perf_counter() - start, sorted(reached)
        return result


def _reach_of_cases(plugin: ReachPlugin) -> None:
    """Lower the cases of the test of values here: the test runs them in processes of its own."""
    cases = importlib.import_module("tests.engine.lowering.op_cases").CASES
    driver = importlib.import_module("engine.lowering.driver")
    printer = importlib.import_module("engine.kernels.triton.printer")
    trace = importlib.import_module("tests.engine.lowering.trace_aten").trace_to_aten
    for name, case in cases.items():
        for kind in ("static", "dynamic") if case.can_be_dynamic else ("static",):
            reached.clear()
            start = time.perf_counter()
            graph = trace(case.function, case.args(), is_dynamic=kind == "dynamic")
            driver.lower(graph, "cuda:90", printer.print_triton)
            seconds, places = time.perf_counter() - start, sorted(reached)
            plugin.found[f"{VALUES_TEST}::test_equals_eager[{name}:{kind}]"] = seconds, places
            plugin.found[f"{CPU_VALUES_TEST}::test_cases_agree_with_eager[{name}-{kind}]"] = seconds, places


def main(arguments: Sequence[str]) -> int:
    """Write the reach of the tests of some folders; 1 if a test fails."""
    target, *folders = arguments
    note_statements(folders)
    plugin = ReachPlugin()
    tests = sorted({test for folder in folders for test in TESTS[folder]} - {VALUES_TEST})
    code = int(pytest.main(["-q", "-n", "0", "-p", "no:cacheprovider", *tests], [plugin])) if tests else 0
    if "engine/lowering/ops" in folders:
        _reach_of_cases(plugin)
    pathlib.Path(target).write_text(json.dumps(plugin.found), encoding="utf-8")
    return code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
