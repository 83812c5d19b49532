"""The house rules that a machine can check: who imports whom, what the product may use, what no file may hold."""

from __future__ import annotations

import ast
import pathlib
import re
import subprocess
import sys

import pytest

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
    api
    backward_pipeline
    expectations : pipeline : observe
    session_jobs : replay_values : (verify_fixes)
    {" | ".join(f"({stage})" for stage in STAGES)}
    cache
    (bytecode) : (graph)
    ir
    records : errors : options
exhaustive = True

[importlinter:contract:front]
name = the engine knows nothing of the notebook
type = forbidden
source_modules =
    engine
forbidden_modules =
    notebook_ext
"""

STOCK_COMPILER = ("torch._dynamo", "torch._inductor", "torch._functorch")
MAY_USE_STOCK = ("engine/observe/", "tests/", "notebooks/")
NOTEBOOK_PACKAGES = ("IPython", "ipywidgets", "anywidget", "traitlets", "graphviz")


def python_files(*roots: str) -> list[pathlib.Path]:
    """Python files below these folders of the repository."""
    return sorted(path for root in roots for path in (ROOT / root).rglob("*.py"))


def imported(path: pathlib.Path) -> set[str]:
    """Every module that a file imports, at any depth of its code."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
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
    """No package imports one to its left, no stage imports another, and the engine never imports the notebook."""
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
        "records": "",
        "errors": "",
        "options": "",
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


@pytest.mark.parametrize("path", python_files("engine"), ids=lambda path: str(path.relative_to(ROOT)))
def test_the_engine_needs_neither_notebook_nor_stock_compiler(path: pathlib.Path) -> None:
    """Engine modules import no notebook package, and only observe/ and the inductor backend may import stock torch.compile."""
    names = imported(path)
    name = path.relative_to(ROOT).as_posix()
    assert not [n for n in names if is_under(n, NOTEBOOK_PACKAGES)]
    if not name.startswith(MAY_USE_STOCK):
        stock = [n for n in names if is_under(n, STOCK_COMPILER)]
        assert not [n for n in stock if not is_allowed_stock(name, n)], stock


def is_allowed_stock(file: str, module: str) -> bool:
    """Whether this engine file may import this stock module: only named exceptions, each for a reason written here."""
    allowed = {
        # backend="inductor" hands a graph to Inductor.
        "engine/pipeline.py": ("torch._inductor",),
    }
    return is_under(module, allowed.get(file, ()))


@pytest.mark.parametrize("path", python_files("engine/records"), ids=lambda path: path.name)
def test_records_open_without_torch(path: pathlib.Path) -> None:
    """Records import no torch, so that a saved session opens where torch is not installed."""
    assert not [n for n in imported(path) if is_under(n, ("torch", "triton"))]


def test_engine_imports_without_torch_or_notebook() -> None:
    """``import engine`` and loading records touch neither torch nor a notebook package."""
    program = (
        "import sys, engine, engine.records.session;"
        f"bad = [m for m in {('torch', *NOTEBOOK_PACKAGES)!r} if m in sys.modules]; sys.exit(' '.join(bad) or 0)"
    )
    ran = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr


@pytest.mark.parametrize(
    "path", python_files("engine", "notebook_ext", "tests"), ids=lambda p: str(p.relative_to(ROOT))
)
def test_modules_open_with_a_sentence_and_leave_nothing_open(path: pathlib.Path) -> None:
    """Every module says what it is for, and none holds a note of work left over."""
    text = path.read_text(encoding="utf-8")
    assert not text.strip() or ast.get_docstring(ast.parse(text)), "no module docstring"
    assert not re.search(r"\b(TO" + r"DO|FIX" + r"ME|X" + r"XX)\b", text)


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
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.FunctionDef) and node.name.startswith("test_") and not ast.get_docstring(node)
    ]
    assert not missing, "\n".join(missing)
