"""Project machinery: make, declared dependencies, and strict lint, type and test settings."""

from __future__ import annotations

import ast
import functools
import importlib.metadata
import os
import re
import shutil
import stat
import subprocess
import sys
import tomllib
from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.markers import LONG_FILES, long_tests_first
from tests.matching_triton import TRITON_OF_TORCH

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
BIN = Path(sys.executable).parent


def make(folder: Path, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run make on a copy of the Makefile, so that nothing of the real environment is touched."""
    for name in ("Makefile", "pyproject.toml"):
        shutil.copy(ROOT / name, folder / name)
    clean = {
        k: v
        for k, v in os.environ.items()
        if k not in ("CI", "MAKEFLAGS", "MFLAGS", "MAKELEVEL", "PYTHON", "TORCH", "TORCH_INDEX", "TESTS", "PRE", "VENV")
    }
    return subprocess.run(
        ["make", *arguments], cwd=folder, env=clean | environment, capture_output=True, text=True, check=False
    )


def script(path: Path, text: str) -> str:
    """An executable shell script."""
    path.write_text(f"#!/bin/sh\n{text}\n", encoding="utf-8")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return str(path)


def said(ran: subprocess.CompletedProcess[str]) -> list[str]:
    """What a person reads, less make's own last line."""
    return [line for line in (ran.stdout + ran.stderr).splitlines() if not line.startswith("make: ***")]


def test_wrong_python_is_one_sentence(tmp_path: Path) -> None:
    """A Python of another version is refused in one sentence that names the remedy."""
    old = script(tmp_path / "python3.8", "exit 1")
    ran = make(tmp_path, "demo", f"PYTHON={old}")
    assert ran.returncode != 0
    assert said(ran) == [
        f"{old} is not Python 3.11, 3.12, 3.13 or 3.14: name one that is with make PYTHON=/path/to/python3.14."
    ]
    assert not (tmp_path / ".venv").exists()


def test_no_python_is_one_sentence(tmp_path: Path) -> None:
    """Where no Python is found, one sentence says what is needed."""
    for tool in ("make", "sh", "test"):
        (tmp_path / tool).symlink_to(str(shutil.which(tool)))
    ran = make(tmp_path, "test", PATH=str(tmp_path))
    assert ran.returncode != 0
    (line,) = said(ran)
    assert line.startswith("Python 3.11, 3.12, 3.13 or 3.14 is needed and none was found")


def test_missing_venv_module_is_one_sentence(tmp_path: Path) -> None:
    """A Python without its venv module is rejected in one sentence with the package's name.

    Debian splits the module off into a package.
    """
    bare = script(tmp_path / "python3", 'case "$2" in *ensurepip*) exit 1;; esac')
    ran = make(tmp_path, "test", f"PYTHON={bare}")
    assert ran.returncode != 0
    (line,) = said(ran)
    assert "apt install python3-venv" in line


def test_free_threaded_python_is_one_sentence(tmp_path: Path) -> None:
    """A free-threaded build is rejected in one sentence before anything is installed."""
    free = script(tmp_path / "python3.14t", 'case "$2" in *Py_GIL_DISABLED*) exit 1;; esac')
    ran = make(tmp_path, "test", f"PYTHON={free}")
    assert ran.returncode != 0
    (line,) = said(ran)
    assert line.startswith(f"{free} is a free-threaded build, which the engine does not support")


@pytest.mark.parametrize("torch", ["2.10.0", "torch==2.9.1", "torch==1.13", "2.10"])
def test_old_torch_is_one_sentence(tmp_path: Path, torch: str) -> None:
    """A torch before 2.11 is rejected in one sentence before anything is installed."""
    fine = script(tmp_path / "python3", "exit 0")
    ran = make(tmp_path, "test", f"PYTHON={fine}", f"TORCH={torch}")
    assert ran.returncode != 0
    (line,) = said(ran)
    assert line.endswith("is too old: torch 2.11 or newer is needed, so name one with make TORCH=2.15.0.")
    assert not (tmp_path / ".venv").exists()


def test_the_newest_python_and_torch_are_the_default(tmp_path: Path) -> None:
    """Without names, make takes the newest working Python and the newest tested torch.

    A system that has only Python 3.14 is found, and a Python that is too new or too old is passed over.
    """

    def first_commands(*working: str) -> str:
        for name in ("python3.14", "python3.13", "python3.11", "python3"):
            script(tmp_path / name, f"exit {0 if name in working else 1}")
        return make(tmp_path, "-n", "demo", PATH=f"{tmp_path}:{os.environ['PATH']}").stdout

    assert '"python3.14" -m venv' in first_commands("python3.14", "python3.13", "python3")
    assert '"python3.14" -m venv' in first_commands("python3.14")
    assert '"python3.13" -m venv' in first_commands("python3.13", "python3.11")
    assert '"python3" -m venv' in first_commands("python3")
    newest = max(TRITON_OF_TORCH, key=lambda version: [int(number) for number in version.split(".")])
    assert f'"torch=={newest}.' in first_commands("python3.14")


def test_matrix_has_an_environment_for_each_pair(tmp_path: Path) -> None:
    """A pair of versions has its own folder and counts; ``PRE=1`` admits pre-releases."""
    fake = script(tmp_path / "python3.14", 'case "$2" in *version_info*) echo python3.14;; esac')
    pair = ("-n", "matrix", f"PYTHON={fake}", "TORCH=2.15.0", "TESTS=tests/golden -x")
    plan = make(tmp_path, *pair).stdout
    assert f'"{fake}" -m venv matrix/python3.14-torch2.15.0' in plan
    assert "--counts matrix/python3.14-torch2.15.0.txt" in plan
    assert plan.rstrip().endswith("-q tests/golden -x")
    install = next(line for line in plan.splitlines() if "pip install" in line)
    assert install.startswith("matrix/python3.14-torch2.15.0/bin/python -m pip install")
    assert "--pre" not in install
    assert '--pre "torch"' in make(tmp_path, "-n", "matrix", f"PYTHON={fake}", "TORCH=torch", "PRE=1").stdout


def test_torch_comes_from_the_cpu_index_outside_ci(tmp_path: Path) -> None:
    """torch is installed first and alone, from PyTorch's CPU index.

    Under CI, or when TORCH_INDEX is empty, it comes from the usual index.
    """

    def first_install(*arguments: str, **environment: str) -> str:
        plan = make(tmp_path, "-n", "test", *arguments, **environment).stdout
        return next(line for line in plan.splitlines() if "pip install" in line)

    assert "--index-url https://download.pytorch.org/whl/cpu" in first_install()
    assert "--index-url" not in first_install(CI="true")
    assert "--index-url" not in first_install("TORCH_INDEX=")
    assert "--index-url https://example.org/x" in first_install("TORCH_INDEX=https://example.org/x", CI="true")
    assert re.search(r'"torch==[\d.]+"$', first_install())


def test_second_run_installs_nothing(tmp_path: Path) -> None:
    """No target installs while the stamp is newer than pyproject.toml; a changed file does.

    A changed pyproject.toml makes the next target install.
    """
    make(tmp_path, "help")
    stamp = tmp_path / ".venv" / ".installed"
    stamp.parent.mkdir()
    stamp.touch()
    os.utime(tmp_path / "pyproject.toml", (1, 1))
    plan = subprocess.run(["make", "-n", "test"], cwd=tmp_path, capture_output=True, text=True, check=True).stdout
    assert "pip install" not in plan
    assert "pytest" in plan
    os.utime(stamp, (0, 0))
    assert (
        "pip install"
        in subprocess.run(["make", "-n", "test"], cwd=tmp_path, capture_output=True, text=True, check=True).stdout
    )


@pytest.mark.thorough
@pytest.mark.parametrize("fails", ["nothing", "ruff", "pytest"])
def test_lint_and_tests_run_beside_each_other(tmp_path: Path, fails: str) -> None:
    """``make test`` runs lint and tests to their end, and fails if either does."""
    tools = tmp_path / ".venv" / "bin"
    tools.mkdir(parents=True)
    for tool in ("ruff", "mypy", "python"):
        script(tools / tool, f'echo "{tool} $@"; case "{tool} $*" in *{fails}*) exit 1;; esac')
    (tools.parent / ".installed").touch()
    ran = make(tmp_path, "test")
    assert (ran.returncode == 0) == (fails == "nothing"), ran.stdout + ran.stderr
    assert "ruff check ." in ran.stdout
    assert "python -m pytest" in ran.stdout
    assert ("mypy" in ran.stdout) == (fails != "ruff")


def test_readme_opens_with_the_two_commands() -> None:
    """The first block holds the two commands and opens its section; every target exists."""
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    before, first, _ = text.split("```\n", 2)
    assert [line.split("#")[0].strip() for line in first.splitlines()] == ["make demo", "make test"]
    assert before.splitlines()[-2].startswith("## ")
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))
    assert set(re.findall(r"(?:^|`)make ([a-z-]+)", text, re.MULTILINE)) <= targets


def third_party(folder: str) -> set[str]:
    """Return top-level names of a package's imports, except our own and Python's."""
    names: set[str] = set()
    for path in (ROOT / folder).rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Import):
                names.update(alias.name.partition(".")[0] for alias in node.names)
            elif isinstance(node, ast.ImportFrom) and node.module:
                names.add(node.module.partition(".")[0])
    return names - set(sys.stdlib_module_names) - {"engine", "notebook_ext", "tests"}


@functools.cache
def distributions_of_modules() -> dict[str, list[str]]:
    """Installed distributions by the name that is imported."""
    return dict(importlib.metadata.packages_distributions())


def declared(*extras: str) -> set[str]:
    """Import names of the declared dependencies."""
    wanted = list(PROJECT["project"]["dependencies"])
    for extra in extras:
        wanted += PROJECT["project"]["optional-dependencies"][extra]
    named = {re.split(r"[<>=!;\[ ]", requirement)[0].lower().replace("_", "-") for requirement in wanted}
    return {
        module
        for module, distributions in distributions_of_modules().items()
        if {d.lower().replace("_", "-") for d in distributions} & named
    }


@pytest.mark.parametrize(("folder", "extras"), [("engine", ()), ("notebook_ext", ("lab",)), ("tests", ("lab", "test"))])
def test_every_import_is_declared(folder: str, extras: tuple[str, ...]) -> None:
    """Every import is a declared dependency of the distribution or of its folder's extra.

    pytest itself imports its plugin, and setuptools its build step, so neither needs a declaration.
    """
    hosts = {"pytest", "setuptools"} if folder == "notebook_ext" else set()
    assert third_party(folder) - hosts <= declared(*extras)


def test_triton_is_required_on_linux_only() -> None:
    """triton has Linux wheels only: a plain dependency would break installation elsewhere."""
    (triton,) = [d for d in PROJECT["project"]["dependencies"] if d.startswith("triton")]
    assert triton.endswith("sys_platform == 'linux'")


def check(*command: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    """Run one of the environment's tools."""
    return subprocess.run([str(BIN / command[0]), *command[1:]], cwd=cwd, capture_output=True, text=True, check=False)


def test_ruff_bites(tmp_path: Path) -> None:
    """Our settings report formatting, unused imports, missing docstrings and stock compile.

    Stock torch.compile is a finding in the engine.
    """
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    (tmp_path / "engine").mkdir()
    bad = tmp_path / "engine" / "bad.py"
    bad.write_text(
        "import os\nfrom torch._dynamo import eval_frame\ndef f( x ):\n    print(eval_frame)\n", encoding="utf-8"
    )
    found = check("ruff", "check", "--no-cache", "--output-format=concise", ".", cwd=tmp_path)
    assert found.returncode == 1
    for rule in ("F401", "D100", "D103", "TID251", "ANN001", "INP001"):
        assert rule in found.stdout, rule
    assert check("ruff", "format", "--no-cache", "--check", ".", cwd=tmp_path).returncode == 1


def test_mypy_bites(tmp_path: Path) -> None:
    """An untyped function, a wrong return and a blanket ignore are errors under our settings."""
    bad = tmp_path / "bad.py"
    bad.write_text(
        "def f(x):\n    return x\n\n\ndef g() -> int:\n    return ''\n\n\nh: int = ''  # type: ignore\n",
        encoding="utf-8",
    )
    found = check(
        "mypy",
        "--config-file",
        str(ROOT / "pyproject.toml"),
        "--cache-dir",
        str(tmp_path / "cache"),
        str(bad),
        cwd=tmp_path,
    )
    assert found.returncode == 1
    for code in ("no-untyped-def", "return-value", "ignore-without-code"):
        assert code in found.stdout, found.stdout


def test_pytest_settings_bite(tmp_path: Path) -> None:
    """Unknown markers, our own warnings and unexpected passes fail; others' warnings do not."""
    settings = PROJECT["tool"]["pytest"]["ini_options"]
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    (tmp_path / "tests").mkdir()
    (tmp_path / "tests" / "test_it.py").write_text(
        "import warnings, pytest\n"
        "def warn(module): warnings.warn_explicit('w', UserWarning, 'f', 1, module=module)\n"
        "def test_ours(): warn('engine.api')\n"
        "def test_views(): warn('notebook_ext')\n"
        "def test_other(): warn('engineering')\n"
        "@pytest.mark.xfail\ndef test_passes(): pass\n",
        encoding="utf-8",
    )
    ran = check("pytest", "-q", "-p", "no:cacheprovider", cwd=tmp_path)
    assert "3 failed, 1 passed" in ran.stdout, ran.stdout
    (tmp_path / "tests" / "test_mark.py").write_text(
        "import pytest\n@pytest.mark.invented\ndef test_a(): pass\n", encoding="utf-8"
    )
    assert "'invented' not found in `markers`" in check("pytest", "-q", "-p", "no:cacheprovider", cwd=tmp_path).stdout
    assert {m.partition(":")[0] for m in settings["markers"]} == {
        "browser",
        "combinations",
        "forks_backward",
        "gpu",
        "nests_calls",
        "slow",
        "thorough",
    }


def test_ci_script_stops_at_the_first_failure() -> None:
    """The CI script is valid bash and runs without standard input under CI=true.

    It names the CPU build of torch 2.13.0 itself, and runs a part of the tests on torch 2.14.1 and a newer Python.
    """
    path = ROOT / ".ci" / "run"
    text = path.read_text(encoding="utf-8")
    assert subprocess.run(["bash", "-n", str(path)], check=False).returncode == 0
    assert "set -euo pipefail" in text
    assert "\nmake test PYTHON=python3.11 TORCH=torch==2.13.0+cpu </dev/null\n" in text
    assert 'make matrix PYTHON="$python" TORCH=torch==2.14.1 TESTS="$tests" </dev/null' in text
    assert os.access(path, os.X_OK)


@pytest.mark.parametrize("version", ["3.13", "3.11"])
@pytest.mark.parametrize(("fails", "code"), [("", 0), ("test", 2), ("matrix", 1)])
def test_ci_script_reports_each_failing_part(tmp_path: Path, fails: str, code: int, version: str) -> None:
    """A failure on 2.13.0 ends the script; one on 2.14.1 says so and fails.

    An environment that cannot be made early is left to ``make matrix``. It has Python 3.13 where there is one.
    """
    (tmp_path / ".ci").mkdir()
    shutil.copy(ROOT / ".ci" / "run", tmp_path / ".ci" / "run")
    tools = tmp_path / "tools"
    tools.mkdir()
    script(tools / "make", f'echo "made $1"; test "$1" != "{fails}" || exit 2')
    script(tools / "chromium", "exit 0")
    script(tools / "npm", "exit 0")
    script(tools / "pyenv", "exit 1")
    script(tools / "python3.13", "exit 1")
    early = f'if [ "$1" = -m ]; then echo "$*" >{tmp_path / "early"}; exit 1; fi; test -z "$2" || echo python{version}'
    script(tools / f"python{version}", early)
    ran = subprocess.run(
        [str(tmp_path / ".ci" / "run")],
        env=os.environ | {"PATH": f"{tools}:{os.environ['PATH']}"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == code
    if fails != "test":
        assert (tmp_path / "early").read_text(encoding="utf-8") == f"-m venv matrix/python{version}-torch2.14.1\n"
    assert ran.stdout.splitlines() == (["made test"] if fails == "test" else ["made test", "made matrix"])
    assert ("torch 2.14.1 failed" in ran.stderr) == (fails == "matrix")


def test_workflow_runs_the_oldest_and_the_newest_pair() -> None:
    """The workflow names a pair for each Python and tries nightly builds."""
    text = (ROOT / ".github" / "workflows" / "test.yml").read_text(encoding="utf-8")
    pairs = re.findall(r'python: "([\d.]+)", torch: "(\d+\.\d+)\.\d+"', text)
    assert pairs == [("3.11", "2.11"), ("3.12", "2.12"), ("3.13", "2.13"), ("3.14", "2.15")]
    assert {torch for _, torch in pairs} <= TRITON_OF_TORCH.keys()
    assert "continue-on-error: true" in text
    assert "TORCH=torch PRE=1" in text


def test_the_top_level_stays_small() -> None:
    """The root holds the files every visitor expects beside packages, notebooks and tests."""
    ran = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True)
    assert {path.partition("/")[0] for path in ran.stdout.splitlines()} <= {
        "pyproject.toml", "notebook_ext", "engine", "notebooks", "tests", "binder", "README.md", "Makefile", "LICENSE", "CONTRIBUTING.md",
        "CHANGELOG.md", "SECURITY.md", "CODE_OF_CONDUCT.md", "CITATION.cff", ".ci", ".github", ".gitignore",
    }  # fmt: skip


def test_make_quick_leaves_out_repetition_only(tmp_path: Path) -> None:
    """Every test function keeps a case, few cases stay complete, and names alone decide.

    The full run, whose selection does not name the marker, keeps all cases. Without the slow ring, cases of
    combined arguments have each value at least once.
    """
    (tmp_path / "conftest.py").write_text("from tests.conftest import pytest_collection_modifyitems\n")
    (tmp_path / "pytest.ini").write_text(
        f"[pytest]\nmarkers =\n  thorough\n  slow\n  combinations\npythonpath = {ROOT}", encoding="utf-8"
    )
    (tmp_path / "test_it.py").write_text(
        "import pytest\n"
        "@pytest.mark.parametrize('n', range(400))\ndef test_many(n): pass\n"
        "@pytest.mark.parametrize('n', range(9))\ndef test_more_than_few(n): pass\n"
        "@pytest.mark.parametrize('n', range(3))\ndef test_few(n): pass\n"
        "def test_one(): pass\n"
        "@pytest.mark.combinations\n@pytest.mark.parametrize('n', 'ab')\n@pytest.mark.parametrize('m', 'cdefg')\n"
        "def test_both(n, m): pass\n",
        encoding="utf-8",
    )

    def collected(*arguments: str) -> Counter[str]:
        ran = check("pytest", "--collect-only", "-q", "-p", "no:cacheprovider", *arguments, cwd=tmp_path)
        return Counter(re.findall(r"::(\w+)", ran.stdout))

    counts = {"test_many": 400, "test_more_than_few": 9, "test_few": 3, "test_one": 1, "test_both": 10}
    assert collected() == counts
    assert collected("-m", "not slow") == counts | {"test_both": 5}
    quick = collected("-m", "not slow and not thorough")
    assert quick["test_both"] >= 1
    assert (quick["test_few"], quick["test_one"]) == (3, 1)
    assert 6 <= quick["test_many"] <= 22
    assert 1 <= quick["test_more_than_few"] <= 3
    assert quick == collected("-m", "not slow and not thorough")


@pytest.mark.parametrize("workers", [2, 3, 4])
def test_long_tests_are_begun_first(workers: int) -> None:
    """Each worker's share begins with its long tests; without room for them the order stays."""
    assert all((ROOT / name).exists() for name in LONG_FILES)
    names = [f"tests/test_{n}.py::test" for n in range(100)]
    for at, name in enumerate(LONG_FILES):
        names[5 * at + 20 : 5 * at + 20] = [f"{name}::test[{n}]" for n in range(2)]
    items: list[Any] = [SimpleNamespace(nodeid=name) for name in names]
    ordered = [item.nodeid for item in long_tests_first(items, workers)]
    assert sorted(ordered) == sorted(names)
    shares, rest = [], ordered
    for left in range(workers, 0, -1):
        size = len(rest) // left
        shares.append([name.startswith(LONG_FILES) for name in rest[:size]])
        rest = rest[size:]
    assert not any(shares[0])
    assert all(share == sorted(share, reverse=True) and share[0] for share in shares[1:])
    only_long = [item for item in items if item.nodeid.startswith(LONG_FILES)]
    assert long_tests_first(only_long, workers) == only_long
