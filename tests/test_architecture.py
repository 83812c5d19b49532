"""Check the architecture rules: imports, allowed dependencies and file contents.

The house rules that a machine can check: who imports whom, what the product may use, what no file may hold.
"""

from __future__ import annotations

import ast
import pathlib
import re
import subprocess
import sys

import pytest

from tests import code_structure
from tests.syntax_trees import walk

ROOT = pathlib.Path(__file__).parents[1]
EXPECTED = ROOT / "tests" / "expected"
STAGES = ("trace", "guards", "aot", "autograd", "lowering", "kernels", "runtime")

CONTRACT = f"""
[importlinter]
root_packages =
    engine
    notebook_ext

[importlinter:contract:way]
name = imports point one way, and stages never import each other
type = layers
containers =
    engine
layers =
    (editing) : (planning)
    api
    backward_pipeline : (user_passes) : (reproducers)
    expectations : (accuracy) : (pipeline_cache) : (pattern_passes) : (operator_definitions) : observe
    pipeline
    (backends) : (link_frame)
    (compilation)
    (torch_reports)
    session_jobs : replay_values : (verify_fixes)
    (forked_run) : (find_compilation)
    {" | ".join(f"({stage})" for stage in STAGES)}
    (frame_code)
    cache
    (bytecode) : (graph)
    ir
    torch_private
    records : errors : options : supported_versions : interrupts : process_state : replace_file : (group_pairs)
exhaustive = True

[importlinter:contract:front]
name = the engine knows nothing of the notebook
type = forbidden
source_modules =
    engine
forbidden_modules =
    notebook_ext
"""

STOCK_COMPILER = (
    "torch._dynamo",
    "torch._inductor",
    "torch._functorch",
    "engine.torch_private.inductor",
    "engine.torch_private.torch_compile",
)
MAY_USE_STOCK = ("engine/observe/", "engine/torch_private/", "tests/", "notebooks/")
NOTEBOOK_PACKAGES = ("IPython", "ipywidgets", "anywidget", "traitlets", "graphviz")


MAX_DEFERRED_IMPORTS = 10
DEFERRED_IMPORTS = {
    ("engine/backends/aot.py", "engine.backends.triton"): "lowering takes half a second to import, and not all need it",
}
"""Deferred imports that stay, as (file, module), each with its reason."""
OTHER_DEFERRED_IMPORTS = 0
"""Imports inside functions that are not listed above. Only ever lower it."""

MAX_ATTRIBUTES, MAX_METHODS, MAX_FUNCTION_LINES, MAX_ISINSTANCE_CHAIN = 20, 30, 60, 5
MAX_TYPE_TESTS = {"isinstance": 677, "type(x) compared": 253, "class pattern": 29}
"""Tests of a value's type in the engine. Only ever lower a number."""

ATTRIBUTE_EXCEPTIONS: dict[str, int] = {}
METHOD_EXCEPTIONS: dict[str, int] = {}
FUNCTION_EXCEPTIONS: dict[str, int] = {}
CHAIN_EXCEPTIONS: dict[str, int] = {}


def python_files(*roots: str) -> list[pathlib.Path]:
    """Python files below these folders of the repository."""
    return sorted(path for root in roots for path in (ROOT / root).rglob("*.py"))


def imported(path: pathlib.Path) -> set[str]:
    """Every module that a file imports, at any depth of its code."""
    names: set[str] = set()
    for node in walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            names.add(node.module)
            names.update(f"{node.module}.{alias.name}" for alias in node.names)
    return names


def is_under(module: str, packages: tuple[str, ...]) -> bool:
    """Whether a module is one of these packages or inside one."""
    return any(module == package or module.startswith(f"{package}.") for package in packages)


def test_imports_point_one_way(tmp_path: pathlib.Path) -> None:
    """No package imports one to its left, no stage another, and the engine no notebook."""
    contract = tmp_path / "contract.ini"
    contract.write_text(CONTRACT, encoding="utf-8")
    lint = pathlib.Path(sys.executable).with_name("lint-imports")
    ran = subprocess.run(
        [str(lint), "--config", str(contract), "--no-cache"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr


def test_the_contract_bites(tmp_path: pathlib.Path) -> None:
    """An import against the way, and one between two stages, are both found."""
    for package, text in {
        "": "",
        "api": "",
        "backward_pipeline": "",
        "expectations": "",
        "pipeline": "",
        "session_jobs": "",
        "replay_values": "",
        "observe": "",
        "trace": "import engine.guards\n",
        "guards": "",
        "aot": "",
        "autograd": "",
        "lowering": "",
        "kernels": "",
        "runtime": "",
        "cache": "",
        "bytecode": "",
        "graph": "import engine.cache\n",
        "ir": "import engine.api\n",
        "torch_private": "",
        "records": "",
        "errors": "",
        "options": "",
        "supported_versions": "",
        "interrupts": "",
        "process_state": "",
        "replace_file": "",
        "group_pairs": "",
    }.items():
        folder = tmp_path / "engine" / package
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "__init__.py").write_text(text, encoding="utf-8")
    (tmp_path / "notebook_ext").mkdir()
    (tmp_path / "notebook_ext" / "__init__.py").write_text("", encoding="utf-8")
    contract = tmp_path / "contract.ini"
    contract.write_text(CONTRACT, encoding="utf-8")
    program = (
        "import sys; sys.path.insert(0, '.'); from importlinter.cli import lint_imports;"
        "sys.exit(lint_imports(config_filename='contract.ini', no_cache=True))"
    )
    ran = subprocess.run(
        [sys.executable, "-P", "-c", program], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert ran.returncode != 0
    assert re.search(r"engine\.trace\s+is not allowed to import\s+engine\.guards", ran.stdout), ran.stdout + ran.stderr
    assert re.search(r"engine\.graph\s+is not allowed to import\s+engine\.cache", ran.stdout), ran.stdout
    assert re.search(r"engine\.ir\s+is not allowed to import\s+engine\.api", ran.stdout), ran.stdout


def over(limit: int, counts: dict[str, int], exceptions: dict[str, int]) -> list[str]:
    """Return limit violations: counts above it without an exception, and unused exceptions."""
    return [
        *(
            f"{where} has {count} ({exceptions.get(where, limit)} at most)"
            for where, count in counts.items()
            if count > max(limit, exceptions.get(where, 0))
        ),
        *(f"{where} needs no exception any more: remove it" for where in exceptions if counts.get(where, 0) <= limit),
    ]


def wrong_deferred_imports(
    root: pathlib.Path, allowed: dict[tuple[str, str], str], others: int, at_most: int = MAX_DEFERRED_IMPORTS
) -> list[str]:
    """Return faults of imports inside functions: too many, without a reason, or stale entries."""
    found = code_structure.deferred_imports(root)
    unlisted = [i for i in found if (i.path, i.module) not in allowed]
    wrong = [
        f"{i.path}:{i.line} imports {i.module} without a comment"
        for i in found
        if i not in unlisted and not i.has_comment
    ]
    wrong += [
        f"{path} no longer imports {module}" for path, module in allowed.keys() - {(i.path, i.module) for i in found}
    ]
    if len(unlisted) > others:
        wrong += [f"{len(unlisted)} unlisted imports ({others} at most), such as:", *map(str, unlisted[:20])]
    return [*wrong, *([f"{len(allowed)} are listed"] if len(allowed) > at_most else [])]


def test_imports_stand_at_the_top() -> None:
    """The engine imports its own modules inside functions only at listed places with reasons."""
    assert not (wrong := wrong_deferred_imports(ROOT, DEFERRED_IMPORTS, OTHER_DEFERRED_IMPORTS)), "\n".join(wrong)


def test_modules_do_not_import_each_other_in_a_cycle() -> None:
    """No group of modules needs each other while they are imported."""
    assert code_structure.import_cycles(ROOT) == []
    assert code_structure.import_cycles(ROOT, "notebook_ext") == []


def test_classes_fit_in_a_head() -> None:
    """No class has more than 20 instance attributes or 30 methods, except those listed."""
    attributes, methods = code_structure.attributes_by_class(ROOT), code_structure.methods_by_class(ROOT)
    assert not (wrong := over(MAX_ATTRIBUTES, attributes, ATTRIBUTE_EXCEPTIONS)), "\n".join(wrong)
    assert not (wrong := over(MAX_METHODS, methods, METHOD_EXCEPTIONS)), "\n".join(wrong)


def test_functions_fit_on_a_page() -> None:
    """No function has more than 60 lines, except those listed."""
    found = over(MAX_FUNCTION_LINES, code_structure.lines_by_function(ROOT), FUNCTION_EXCEPTIONS)
    assert not found, "\n".join(found)


def test_types_are_tested_no_more_than_before() -> None:
    """``isinstance`` calls and their substitutes do not grow, and no unlisted chain is long."""
    counts = code_structure.type_tests(ROOT)
    assert {kind: counts[kind] for kind in counts if counts[kind] > MAX_TYPE_TESTS[kind]} == {}
    found = over(MAX_ISINSTANCE_CHAIN, code_structure.isinstance_chains(ROOT), CHAIN_EXCEPTIONS)
    assert not found, "\n".join(found)


PLANTED = {
    "engine/__init__.py": "",
    "engine/a.py": """
import importlib
from typing import TYPE_CHECKING
from engine import b
if TYPE_CHECKING:
    from engine.d import D

def late():
    from engine.c import z  # reads a large table
    import engine.d

    def inner():
        return importlib.import_module("engine.b")

    import torch
    return inner
""",
    "engine/b.py": "from engine.c import z\n",
    "engine/c.py": "try:\n    import engine.a\nexcept ImportError:\n    pass\nz = 1\n",
    "engine/d.py": """
from typing import ClassVar
import engine.a

class Base:
    __slots__ = ("first", "second")

class D(Base):
    third: int
    shared: ClassVar[int] = 0

    def one(self):
        self.fourth = self.fifth = 5
        other.sixth = 6

    @property
    def two(self): return self.seventh
""",
    "engine/e.py": """
def ladder(v):
    if isinstance(v, int):
        return 1
    if isinstance(v, str):
        return 2
    elif isinstance(v, list) or isinstance(v, tuple):
        return 3
    w = v()
    if isinstance(w, int):
        return 4
    return isinstance(w, str)

def by_type(v):
    if type(v) is int:
        return 1
    match v:
        case str():
            return 2
    return [isinstance(x, int) or isinstance(x, str) or isinstance(x, bool) or isinstance(x, set) for x in v]
""",
}


@pytest.fixture
def planted(tmp_path: pathlib.Path) -> pathlib.Path:
    """A small package that breaks each limit."""
    for name, text in PLANTED.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text, encoding="utf-8")
    return tmp_path


def test_deferred_imports_are_found(planted: pathlib.Path) -> None:
    """Every form of import inside a function is found; an unused entry is rejected.

    A listed import without a comment is rejected too.
    """
    found = [(i.path, i.module) for i in code_structure.deferred_imports(planted)]
    assert sorted(found) == [("engine/a.py", f"engine.{name}") for name in "bcd"]
    assert wrong_deferred_imports(planted, {}, others=3) == []
    assert wrong_deferred_imports(planted, {}, others=2)[0] == "3 unlisted imports (2 at most), such as:"
    assert wrong_deferred_imports(planted, {("engine/a.py", "engine.c"): "a large table"}, others=2) == []
    (uncommented,) = wrong_deferred_imports(planted, {("engine/a.py", "engine.b"): "because"}, others=2)
    assert "imports engine.b without a comment" in uncommented
    assert "engine/b.py no longer imports engine.d" in wrong_deferred_imports(
        planted, {("engine/b.py", "engine.d"): "because"}, others=3
    )
    assert wrong_deferred_imports(planted, {("engine/a.py", "engine.c"): "a large table"}, others=2, at_most=0)


def test_import_cycles_are_found(planted: pathlib.Path) -> None:
    """A cycle of three modules is found; type-checking and function imports are not in cycles."""
    assert code_structure.import_cycles(planted) == [("engine.a", "engine.b", "engine.c")]


def test_sizes_are_counted(planted: pathlib.Path) -> None:
    """Assigned, declared and inherited attributes count, as do properties and the head line.

    Attributes count where they are assigned, declared or inherited; methods with properties; lines with the head.
    """
    assert code_structure.attributes_by_class(planted) == {"engine/d.py:Base": 2, "engine/d.py:D": 5}
    assert code_structure.methods_by_class(planted) == {"engine/d.py:Base": 0, "engine/d.py:D": 2}
    assert code_structure.lines_by_function(planted)["engine/a.py:late"] == 9


def test_type_tests_are_counted(planted: pathlib.Path) -> None:
    """All type tests count, and a chain of them ends at a statement that is no ``if``.

    An expression is a chain of its own.
    """
    assert code_structure.type_tests(planted) == {"isinstance": 10, "type(x) compared": 1, "class pattern": 1}
    chains = code_structure.isinstance_chains(planted)
    assert (chains["engine/e.py:ladder"], chains["engine/e.py:by_type"]) == (4, 4)


def test_limits_and_their_exceptions_bite() -> None:
    """A count above the limit or its exception fails, and so does an unneeded exception."""
    assert over(5, {"a": 5, "b": 7}, {"b": 7}) == []
    assert over(5, {"a": 6}, {}) == ["a has 6 (5 at most)"]
    assert over(5, {"a": 8}, {"a": 7}) == ["a has 8 (7 at most)"]
    assert over(5, {"a": 5}, {"a": 7, "gone": 6}) == [
        f"{where} needs no exception any more: remove it" for where in ("a", "gone")
    ]


def forbidden_imports(path: pathlib.Path) -> list[str]:
    """Return imports of a notebook package or the stock compiler that a file may not have."""
    name = path.relative_to(ROOT).as_posix()
    names = imported(path)
    wrong = [n for n in names if is_under(n, NOTEBOOK_PACKAGES)]
    if not name.startswith(MAY_USE_STOCK):
        wrong += [n for n in names if is_under(n, STOCK_COMPILER) and not is_allowed_stock(name, n)]
    return [f"{name} imports {n}" for n in sorted(wrong)]


def test_the_engine_needs_neither_notebook_nor_stock_compiler() -> None:
    """Engine modules import no notebook package, and few import stock ``torch.compile``.

    Only observe/ and the inductor backend may import stock torch.compile.
    """
    wrong = [line for path in python_files("engine") for line in forbidden_imports(path)]
    assert not wrong, "\n".join(wrong)


def is_allowed_stock(file: str, module: str) -> bool:
    """Return true if this engine file may import this stock module.

    Only named exceptions may, each for a reason written here.
    """
    allowed = {
        # backend="inductor" hands a graph to Inductor.
        "engine/backends/external.py": ("engine.torch_private.inductor",),
    }
    return is_under(module, allowed.get(file, ()))


def test_records_open_without_torch() -> None:
    """Records import no torch, so that a saved session opens where torch is not installed."""
    wrong = [
        f"{path.name} imports {n}"
        for path in python_files("engine/records")
        for n in imported(path)
        if is_under(n, ("torch", "triton"))
    ]
    assert not wrong, "\n".join(wrong)


def test_engine_imports_without_torch_or_notebook() -> None:
    """``import engine`` and loading records touch neither torch nor a notebook package."""
    program = (
        "import sys, engine, engine.records.session;"
        f"bad = [m for m in {('torch', *NOTEBOOK_PACKAGES)!r} if m in sys.modules]; sys.exit(' '.join(bad) or 0)"
    )
    ran = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr


def module_faults(path: pathlib.Path) -> list[str]:
    """Return what is missing or left over in a module."""
    text, name = path.read_text(encoding="utf-8"), path.relative_to(ROOT)
    opens = not text.strip() or ast.get_docstring(ast.parse(text))
    note = re.search(r"\b(TO" + r"DO|FIX" + r"ME|X" + r"XX)\b", text)
    return [*([] if opens else [f"{name} has no docstring"]), *([f"{name} holds a {note[0]}"] if note else [])]


def test_modules_open_with_a_sentence_and_leave_nothing_open() -> None:
    """Every module says what it is for, and none holds a note of work left over."""
    wrong = [line for path in python_files("engine", "notebook_ext", "tests") for line in module_faults(path)]
    assert not wrong, "\n".join(wrong)


def test_expected_files_have_a_test() -> None:
    """Every file below tests/expected belongs to a test that still exists."""
    for path in sorted(EXPECTED.rglob("*.txt")):
        texts = [file.read_text(encoding="utf-8") for file in (ROOT / "tests").rglob(f"test_{path.parent.name}.py")]
        assert any(
            f"def test_{path.stem}(" in text or f'"{path.stem.partition("-")[0]}{path.suffix}"' in text
            for text in texts
        ), f"orphan: {path}"


def test_every_test_says_what_it_tests() -> None:
    """Every test function has a docstring that states the behavior."""
    missing = [
        f"{path.relative_to(ROOT)}:{node.lineno} {node.name}"
        for path in python_files("tests")
        for node in walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.FunctionDef) and node.name.startswith("test_") and not ast.get_docstring(node)
    ]
    assert not missing, "\n".join(missing)
