"""Test the wheel and the sdist that users install.

Both hold what is needed, and a wheel that is installed alone gives a working ``%load_ext compile_explorer``.
"""

from __future__ import annotations

import ast
import hashlib
import io
import itertools
import pathlib
import re
import shutil
import subprocess
import sys
import tarfile
import tokenize
import tomllib
import venv
import zipfile

import pytest

from engine.supported_versions import NEWEST_PYTHON, OLDEST_PYTHON, OLDEST_TORCH
from engine.trace.graph_breaks.reasons import BREAK_REASONS
from notebook_ext.widgets.bundle_assets import PACKED_SOURCES, full_module_text, style_text
from tests.matching_triton import TRITON_OF_TORCH

ROOT = pathlib.Path(__file__).parents[2]
MOST_BYTES = 2_049_500
"""Size limit of a wheel as built.

The release workflow compresses it better, by 2.4 %, and stops at 2,000,000.
"""
READ_SHARE = 4
"""One module of the wheel in so many is read token by token outside the slow ring.

One function writes them all.
"""
CELLS = r'''
from IPython.testing.globalipapp import start_ipython
shell = start_ipython()
assert shell.run_cell("%load_ext compile_explorer").success
ran = shell.run_cell("""%%compile -o session
import torch
def f(x):
    return torch.softmax(x, 0)
f(torch.ones(3))""")
assert ran.success
import hashlib
import engine, notebook_ext
from notebook_ext.widgets.bundle_assets import full_module_text, style_text
from engine.trace.graph_breaks.reasons import BREAK_REASONS
words = [*(full_module_text() + style_text()).split(), repr(sorted(BREAK_REASONS.items()))]
print(hashlib.sha256(" ".join(words).encode()).hexdigest())
print(engine.__file__)
print(len(shell.user_ns["session"].compilations))
'''


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    """Build a wheel and an sdist from a copy of the sources, and return their folder.

    The build uses the installed setuptools and no network.
    """
    source = tmp_path_factory.mktemp("source") / "copy"
    ours = ".git .venv* matrix node_modules __pycache__ *.egg-info build dist report .*_cache"
    kept = shutil.ignore_patterns(*ours.split())
    shutil.copytree(ROOT, source, ignore=kept)
    out = tmp_path_factory.mktemp("dist")
    for kind in ("sdist", "wheel"):
        script = f"import sys; from setuptools import build_meta; build_meta.build_{kind}(sys.argv[1])"
        subprocess.run([sys.executable, "-c", script, str(out)], cwd=source, check=True, capture_output=True)
    return out


def tokens_of(text: str) -> list[tuple[int, str, int]]:
    """Return kind, text and line of each token; indentations have no width and no line."""
    tokens = tokenize.generate_tokens(io.StringIO(text).readline)
    levels = (tokenize.INDENT, tokenize.DEDENT)
    return [
        (t.type, *(("", 0) if t.type in levels else (t.string, t.start[0]))) for t in tokens if t.type != tokenize.NL
    ]


def lines_of_texts(source: str) -> set[int]:
    """Return the lines of strings after statements of a class, and of private docstrings."""
    lines: set[int] = set()
    for node in ast.walk(ast.parse(source)):
        name = getattr(node, "name", None) or ""
        if name.startswith("_") and not name.startswith("__") and isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            text = node.body[0]
            if ast.get_docstring(node) is not None and len(node.body) > 1:
                lines.update(range(text.lineno, text.end_lineno + 1))
        if isinstance(node, (ast.Module, ast.ClassDef)):
            for before, statement in itertools.pairwise(node.body):
                if isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant):
                    lines.update(range(before.end_lineno + 1, statement.end_lineno + 1))
    return lines


@pytest.mark.thorough
def test_the_wheel_holds_what_runs(built: pathlib.Path) -> None:
    """Both packages, and the front end in one file; no tests, notebooks or site."""
    (wheel,) = built.glob("*.whl")
    names = zipfile.ZipFile(wheel).namelist()
    for name in (
        "engine/py.typed",
        "notebook_ext/py.typed",
        "notebook_ext/static/question.js",
        "notebook_ext/static/question.css",
        f"notebook_ext/static/{PACKED_SOURCES}",
    ):
        assert name in names
    assert len([name for name in names if name.startswith("notebook_ext/static/")]) == 3
    data = [name for name in names if ".data/data/" in name]
    assert {name.partition(".data/data/")[2] for name in data} == {
        "share/jupyter/labextensions/compile-explorer/package.json",
        "share/jupyter/labextensions/compile-explorer/static/remoteEntry.js",
    }
    tops = {name.split("/")[0] for name in names if name not in data}
    assert {t for t in tops if not t.endswith(".dist-info")} == {"engine", "notebook_ext", "compile_explorer"}
    assert wheel.stat().st_size < MOST_BYTES
    clone = ("notebook_ext/alias", "notebook_ext/site", "notebook_ext/reference_docs")
    assert not [name for name in names if name.startswith(clone)]


@pytest.mark.thorough
@pytest.mark.parametrize("part", [0, *(pytest.param(n, marks=pytest.mark.slow) for n in range(1, READ_SHARE))])
def test_modules_of_the_wheel_are_those_of_the_sources_without_comments(part: int, built: pathlib.Path) -> None:
    """Each module has its tokens on the same lines, without what only readers need."""
    (wheel,) = built.glob("*.whl")
    with zipfile.ZipFile(wheel) as opened:
        names = sorted(n for n in opened.namelist() if n.startswith("engine/") and n.endswith(".py"))
        modules = {n: opened.read(n).decode() for n in names[part::READ_SHARE]}
    assert len(modules) > 400 // READ_SHARE
    for name, text in modules.items():
        source = (ROOT / name).read_text(encoding="utf-8")
        left_out = lines_of_texts(source)
        assert not lines_of_texts(text), name
        assert tokens_of(text) == [t for t in tokens_of(source) if t[0] != tokenize.COMMENT and t[2] not in left_out], (
            name
        )


@pytest.mark.thorough
def test_the_sdist_builds_again(built: pathlib.Path) -> None:
    """The source archive has the license, the readme, and all of both packages."""
    (archive,) = built.glob("*.tar.gz")
    with tarfile.open(archive) as opened:
        names = {n.partition("/")[2] for n in opened.getnames()}
    assert {"LICENSE", "README.md", "pyproject.toml", "engine/api.py", "notebook_ext/static/question.js"} <= names


@pytest.mark.thorough
def test_an_installed_wheel_alone_works(built: pathlib.Path, tmp_path: pathlib.Path) -> None:
    """The extension loads and compiles a cell in a separate environment.

    That environment sees only the wheel and the dependencies that are installed here.
    Its front end and its catalog of breaks are those of the sources.
    """
    venv.create(tmp_path / "env", system_site_packages=False, with_pip=False)
    python = tmp_path / "env" / "bin" / "python"
    (wheel,) = built.glob("*.whl")
    site = next((tmp_path / "env").glob("lib/python*/site-packages"))
    install = [sys.executable, "-m", "pip", "--python", str(python), "install", "--no-index", "--no-deps", str(wheel)]
    subprocess.run(install, check=True, capture_output=True)
    here = pathlib.Path(pytest.__file__).parents[1]
    (site / "dependencies.pth").write_text(f"{here}\n", encoding="utf-8")
    ran = subprocess.run(
        [str(python), "-c", CELLS],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
        env={"PATH": "/usr/bin:/bin", "HOME": str(tmp_path)},
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    lines = ran.stdout.splitlines()
    words = [*(full_module_text() + style_text()).split(), repr(sorted(BREAK_REASONS.items()))]
    assert lines[-3] == hashlib.sha256(" ".join(words).encode()).hexdigest()
    assert lines[-2].startswith(str(site))
    assert lines[-1] == "1"
    script = tmp_path / "env" / "bin" / "compile-explorer"
    session = ROOT / "notebooks" / "sessions" / "gated_norm.json"
    found = subprocess.run([script, "doctor", session], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert found.returncode in (0, 1), found.stderr
    assert found.stdout.startswith("gated_norm.json: ")


def test_no_pin_fights_the_installed_torch() -> None:
    """Torch, Triton and numpy have a lower bound only; the extras that users install exist."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    for requirement in (*project["dependencies"], *project["optional-dependencies"]["triton"]):
        if re.match(r"(torch|triton|numpy)\b", requirement):
            assert not re.search(r"[<=~]=?\s*\d", requirement.partition(";")[0].replace(">=", "")), requirement
    assert {"lab", "cpu", "triton"} <= project["optional-dependencies"].keys()


def test_versions_that_were_tested_are_stated() -> None:
    """README names the range of Python and torch; the bounds admit it and no older one.

    There is no upper bound on torch and Triton: installing never replaces a newer torch.
    """
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    assert "Python 3.11 with torch 2.13" in text
    oldest, newest = (".".join(map(str, v)) for v in (OLDEST_PYTHON, NEWEST_PYTHON))
    torch_range = f"torch {'.'.join(map(str, OLDEST_TORCH))} to {list(TRITON_OF_TORCH)[-1]}"
    assert f"Python {oldest} to {newest}" in text
    assert torch_range in text
    project = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    assert f'requires-python = ">={oldest},<3.{NEWEST_PYTHON[1] + 1}"' in project
    assert f'"torch>={".".join(map(str, OLDEST_TORCH))}",' in project
    assert f'"triton>={TRITON_OF_TORCH["2.11"]}; sys_platform' in project
    for minor in range(OLDEST_PYTHON[1], NEWEST_PYTHON[1] + 1):
        assert f'"Programming Language :: Python :: 3.{minor}"' in project
