"""Measure code structure from syntax: deferred imports, cycles, sizes and type tests.

Each function takes the folder that holds the packages, so that a test can plant a small tree.
``tests/test_architecture.py`` holds the limits and the exceptions to them.
"""

from __future__ import annotations

import ast
import functools
import gc
import re
from collections import Counter, defaultdict
from typing import TYPE_CHECKING, NamedTuple

from tests.syntax_trees import walk

if TYPE_CHECKING:
    import pathlib
    from collections.abc import Iterable, Iterator, Mapping

PACKAGES = ("engine", "notebook_ext")
Function = ast.FunctionDef | ast.AsyncFunctionDef
IMPORTING = (ast.Import, ast.ImportFrom, ast.Call)


class DeferredImport(NamedTuple):
    """One import of the packages' own modules inside a function."""

    path: str
    line: int
    module: str
    has_comment: bool
    """Whether a comment stands on the line or on the one above."""


@functools.lru_cache(maxsize=2)
def parse(root: pathlib.Path, package: str = "engine") -> Mapping[str, ast.Module]:
    """Syntax trees of a package by path below the root.

    Garbage collection would visit all the trees again and again while they are made.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        return {
            path.relative_to(root).as_posix(): ast.parse(path.read_text(encoding="utf-8"))
            for path in sorted((root / package).rglob("*.py"))
        }
    finally:
        if was_enabled:
            gc.enable()


def is_own(module: str) -> bool:
    """Whether a module belongs to the packages."""
    return module.partition(".")[0] in PACKAGES


def deferred_imports(root: pathlib.Path, package: str = "engine") -> list[DeferredImport]:
    """Find imports of own modules inside functions.

    By statement, or by ``importlib.import_module`` with a constant name.
    """
    found = []
    for path, tree in parse(root, package).items():
        lines = (root / path).read_text(encoding="utf-8").split("\n")
        nodes = {
            id(node): node for function in _functions(tree) for node in walk(function) if isinstance(node, IMPORTING)
        }
        for node in nodes.values():
            for module in filter(is_own, _modules_imported_by(node)):
                above = "\n".join(lines[max(node.lineno - 2, 0) : node.lineno])
                found.append(DeferredImport(path, node.lineno, module, "#" in above))
    return found


def _functions(tree: ast.AST) -> Iterator[ast.AST]:
    return (node for node in walk(tree) if isinstance(node, Function | ast.Lambda))


def _modules_imported_by(node: ast.AST) -> tuple[str, ...]:
    if isinstance(node, ast.Import):
        return tuple(alias.name for alias in node.names)
    if isinstance(node, ast.ImportFrom):
        return (node.module or "",)
    if isinstance(node, ast.Call) and getattr(node.func, "attr", getattr(node.func, "id", "")) == "import_module":
        return tuple(str(a.value) for a in node.args[:1] if isinstance(a, ast.Constant))
    return ()


def import_cycles(root: pathlib.Path, package: str = "engine") -> list[tuple[str, ...]]:
    """Find groups of modules that import each other at import time.

    Imports for type checkers do not count.
    """
    trees = parse(root, package)
    modules = {_module_name(path): tree for path, tree in trees.items()}
    graph = {name: _resolve(_imports_at_import(tree), frozenset(modules)) - {name} for name, tree in modules.items()}
    return sorted(tuple(sorted(group)) for group in _strong_components(graph) if len(group) > 1)


def _module_name(path: str) -> str:
    return path.removesuffix(".py").removesuffix("/__init__").replace("/", ".")


def _imports_at_import(tree: ast.Module) -> Iterator[tuple[str, str]]:
    """Pairs (module, name or "") of the imports that run when a module is imported."""
    pending: list[ast.AST] = list(tree.body)
    while pending:
        node = pending.pop()
        if isinstance(node, Function | ast.Lambda) or (
            isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test)
        ):
            continue
        if isinstance(node, ast.ImportFrom):
            yield from ((node.module or "", alias.name) for alias in node.names)
        else:
            yield from ((module, "") for module in _modules_imported_by(node))
        pending.extend(ast.iter_child_nodes(node))


def _resolve(imports: Iterable[tuple[str, str]], modules: frozenset[str]) -> set[str]:
    """Return the package's modules among imports.

    ``from a import b`` counts as ``a.b`` if that is a module, else as ``a``.
    """
    wanted = ((f"{module}.{name}", module) for module, name in imports)
    return {next(m for m in pair if m in modules) for pair in wanted if modules.intersection(pair)}


def _strong_components(graph: Mapping[str, set[str]]) -> Iterator[set[str]]:
    """Strongly connected components: two modules are in one if each reaches the other."""

    def reachable(start: str) -> set[str]:
        seen, pending = {start}, [start]
        while pending:
            new = graph[pending.pop()] - seen
            seen |= new
            pending.extend(new)
        return seen

    reach = {name: reachable(name) for name in graph}
    done: set[str] = set()
    for name in graph:
        if name not in done:
            group = {other for other in reach[name] if name in reach[other]}
            done |= group
            yield group


def attributes_by_class(root: pathlib.Path) -> dict[str, int]:
    """Count instance attributes by ``path:class``, including inherited ones.

    An attribute is assigned to ``self``, declared, in slots, or inherited.

    Inherited ones count, so that attributes do not hide in a base class that only one class uses.
    """
    classes = list(_classes(root))
    own = {id(node): _attributes(node) for _, node in classes}
    by_name: dict[str, list[ast.ClassDef]] = defaultdict(list)
    for _, node in classes:
        by_name[node.name].append(node)

    def inherited(node: ast.ClassDef) -> set[str]:
        bases = (by_name[getattr(base, "attr", getattr(base, "id", ""))] for base in node.bases)
        return own[id(node)].union(*(inherited(b[0]) for b in bases if len(b) == 1 and b[0] is not node))

    return {where: len(inherited(node)) for where, node in classes}


def methods_by_class(root: pathlib.Path) -> dict[str, int]:
    """Number of functions in each class's body by ``path:class``, properties included."""
    return {where: sum(isinstance(child, Function) for child in node.body) for where, node in _classes(root)}


def _classes(root: pathlib.Path) -> Iterator[tuple[str, ast.ClassDef]]:
    for path, tree in parse(root).items():
        yield from ((f"{path}:{node.name}", node) for node in walk(tree) if isinstance(node, ast.ClassDef))


def _attributes(node: ast.ClassDef) -> set[str]:
    assigned = {
        child.attr
        for child in walk(node)
        if isinstance(child, ast.Attribute) and isinstance(child.ctx, ast.Store) and _is_self(child.value)
    }
    for child in node.body:
        if isinstance(child, ast.AnnAssign) and not re.match("ClassVar|InitVar", ast.unparse(child.annotation)):
            assigned.add(ast.unparse(child.target))
        if isinstance(child, ast.Assign) and getattr(child.targets[0], "id", "") == "__slots__":
            assigned.update(
                c.value for c in walk(child.value) if isinstance(c, ast.Constant) and isinstance(c.value, str)
            )
    return assigned


def _is_self(node: ast.AST) -> bool:
    return isinstance(node, ast.Name) and node.id == "self"


def lines_by_function(root: pathlib.Path) -> dict[str, int]:
    """Count lines by ``path:function``, including docstrings.

    Of several functions with one name, the longest counts.
    """
    found: dict[str, int] = {}
    for path, tree in parse(root).items():
        for node in walk(tree):
            if isinstance(node, Function):
                where = f"{path}:{node.name}"
                found[where] = max(found.get(where, 0), (node.end_lineno or node.lineno) - node.lineno + 1)
    return found


def type_tests(root: pathlib.Path) -> Counter[str]:
    """Count tests of a value's type.

    These are ``isinstance`` calls, comparisons of ``type(x)`` and class patterns of ``match``.
    """
    counts: Counter[str] = Counter()
    for tree in parse(root).values():
        for node in walk(tree):
            if _is_isinstance(node):
                counts["isinstance"] += 1
            elif isinstance(node, ast.MatchClass):
                counts["class pattern"] += 1
            elif isinstance(node, ast.Compare) and any(map(_is_type_call, (node.left, *node.comparators))):
                counts["type(x) compared"] += 1
    return counts


def _is_isinstance(node: ast.AST) -> bool:
    return isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "isinstance"


def _is_type_call(node: ast.AST) -> bool:
    return isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "type"


def isinstance_chains(root: pathlib.Path) -> dict[str, int]:
    """Length of the longest chain of ``isinstance`` tests by ``path:function``.

    A chain is a run of ``if`` statements that follow each other, with their ``elif`` branches, or one expression: in
    either, a reader goes through all tests to find the one that holds.
    """
    found: dict[str, int] = {}
    for path, tree in parse(root).items():
        for function in (node for node in walk(tree) if isinstance(node, Function)):
            longest = max((_count_tests(part) for part in _chains(function)), default=0)
            where = f"{path}:{function.name}"
            found[where] = max(found.get(where, 0), longest)
    return found


def _chains(function: ast.AST) -> Iterator[list[ast.expr]]:
    """Yield the tests of each run of ``if`` statements, and each other expression.

    Covers one function, without nested functions.
    """
    for node in walk(function):
        for body in (getattr(node, part, None) for part in ("body", "orelse", "finalbody")):
            run: list[ast.expr] = []
            for statement in body if isinstance(body, list) else ():
                if isinstance(statement, ast.If):
                    run.extend(_branch_tests(statement))
                else:
                    yield run
                    run = []
            yield run
        if isinstance(node, ast.stmt):
            yield from ([child] for child in ast.iter_child_nodes(node) if isinstance(child, ast.expr))


def _branch_tests(statement: ast.If) -> Iterator[ast.expr]:
    yield statement.test
    for other in statement.orelse:
        if isinstance(other, ast.If) and len(statement.orelse) == 1:
            yield from _branch_tests(other)


def _count_tests(chain: list[ast.expr]) -> int:
    return sum(_is_isinstance(node) for test in chain for node in walk(test))
