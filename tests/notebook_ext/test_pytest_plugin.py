"""Pytest plugin ``--compile-report``: report, baseline, failures with the line."""

from __future__ import annotations

import importlib
import json
import os
import pathlib
import subprocess
import sys
from dataclasses import dataclass

import pytest

from engine.records.compile_facts import CompileFacts, markdown_report, regressions
from engine.runtime.workers.fork import fork_process

BEFORE = """
import torch, engine
def test_model():
    def model(x):
        y = x + 1
        return y * 2
    engine.compile(model, backend="eager")(torch.ones(3))
def test_without_compiling():
    assert True
"""
AFTER = BEFORE.replace("        return y * 2", "        print(end='')\n        return y * 2")


@dataclass
class Ran:
    """A finished run of pytest, and what it printed."""

    returncode: int
    output: str


def run_pytest(folder: pathlib.Path, *options: str, files: tuple[str, ...] = ("test_it.py",)) -> Ran:
    """Run pytest with the plugin on one file, in a fork that need not import torch."""
    command = [
        "-p",
        "notebook_ext.commands.pytest_plugin",
        "-p",
        "no:cacheprovider",
        "-p",
        "no:faulthandler",
        *files,
        *options,
    ]
    importlib.import_module("engine.api")
    output = folder / "output.txt"
    child = fork_process()
    if not child:
        code = 99
        try:
            with output.open("w", encoding="utf-8") as sys.stdout:
                sys.stderr = sys.stdout
                os.chdir(folder)
                os.environ["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"
                code = int(pytest.main(command))
        finally:
            os._exit(code)
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    return Ran(code, output.read_text(encoding="utf-8"))


@pytest.mark.thorough
def test_a_test_that_exceeds_the_baseline_fails(tmp_path: pathlib.Path) -> None:
    """A new graph break fails the test with its line; the report for a pull request lists it."""
    (tmp_path / "test_it.py").write_text(BEFORE)
    assert run_pytest(tmp_path, "--compile-update").returncode == 0
    baseline = json.loads((tmp_path / "compile-baseline.json").read_text())
    assert set(baseline["tests"]) == {"test_it.py::test_model"}
    (tmp_path / "test_it.py").write_text(AFTER)
    ran = run_pytest(tmp_path, "--compile-report")
    assert ran.returncode == 1, ran.output
    assert "1 new break: test_it.py:6" in ran.output
    report = (tmp_path / "compile-report.md").read_text()
    assert "1 of 1 tests that compile exceed the baseline" in report
    assert "test\\_it.py:6" in report


@pytest.mark.thorough
def test_a_recompile_is_named_once_without_torchs_trace(tmp_path: pathlib.Path) -> None:
    """A new recompile has one cause; records of torch's trace are no output of the test."""
    once = """
import torch
def test_model():
    compiled = torch.compile(lambda x: x + 1, backend="eager")
    compiled(torch.ones(3))
"""
    (tmp_path / "test_it.py").write_text(once)
    assert run_pytest(tmp_path, "--compile-update").returncode == 0
    more = "".join(f"    compiled(torch.ones({arguments}))\n" for arguments in ("4", "5, dtype=torch.float64"))
    (tmp_path / "test_it.py").write_text(once + more)
    ran = run_pytest(tmp_path, "--compile-report")
    assert ran.returncode == 1, ran.output
    assert ran.output.count("has dtype f64; the compiled code expects f32\n") == 2  # in the failure and in the summary
    assert "torch.__trace" not in ran.output


@pytest.mark.thorough
def test_facts_do_not_depend_on_earlier_tests(tmp_path: pathlib.Path) -> None:
    """Two tests of one function each compile it; a test that is worse is not listed as better."""
    text = """
import engine, torch
def double(x):
    return x * 2
def test_one():
    engine.compile(double)(torch.ones(3))
def test_two():
    with engine.expect(graphs=1):
        engine.compile(double)(torch.ones(3))
"""
    (tmp_path / "test_it.py").write_text(text)
    assert run_pytest(tmp_path, "--compile-update").returncode == 0
    tests = json.loads((tmp_path / "compile-baseline.json").read_text())["tests"]
    assert {name.rpartition(":")[2]: facts["graphs"] for name, facts in tests.items()} == {"test_one": 1, "test_two": 1}


@pytest.mark.thorough
def test_reports_without_and_with_a_baseline(tmp_path: pathlib.Path) -> None:
    """Without a baseline nothing fails; a broken baseline is a usage error."""
    (tmp_path / "test_it.py").write_text(AFTER)
    assert run_pytest(tmp_path, "--compile-report=out.md").returncode == 0
    assert "no baseline" in (tmp_path / "out.md").read_text()
    (tmp_path / "compile-baseline.json").write_text("[]")
    ran = run_pytest(tmp_path, "--compile-report")
    assert ran.returncode == pytest.ExitCode.USAGE_ERROR
    assert "no baseline of compile reports" in ran.output


@pytest.mark.thorough
def test_the_option_before_a_test_file_spares_the_file(tmp_path: pathlib.Path) -> None:
    """The file after a bare ``--compile-report`` is run, and not overwritten by the report."""
    path = tmp_path / "test_it.py"
    path.write_text(BEFORE)
    assert "2 passed" in run_pytest(tmp_path, "--compile-report", "test_it.py", files=()).output
    assert path.read_text() == BEFORE
    assert (tmp_path / "compile-report.md").exists()


def test_runs_without_a_report_do_not_import_torch(tmp_path: pathlib.Path) -> None:
    """Every run of pytest where the package is installed loads the plugin."""
    (tmp_path / "test_it.py").write_text("import sys\ndef test_it():\n    assert 'torch' not in sys.modules\n")
    command = [sys.executable, "-m", "pytest", "-p", "notebook_ext.commands.pytest_plugin", "-p", "no:cacheprovider"]
    variables = {**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    ran = subprocess.run(command, cwd=tmp_path, env=variables, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stdout


def test_moved_lines_are_no_new_breaks() -> None:
    """A break whose line moved is the old one; what became less is no regression."""
    old = CompileFacts(2, ("model.py:3: Output is printed",), (), 10, 1000)
    new = CompileFacts(3, ("model.py:9: Output is printed", "model.py:31: Data-dependent jump"), (), 9, 1001)
    assert regressions(new, old) == ("1 new break: model.py:31: Data-dependent jump", "3 graphs instead of 2")
    assert regressions(old, new) == ("10 guards instead of 9",)


def test_hostile_names_stay_text() -> None:
    """Markup in a reason is escaped in the report."""
    facts = CompileFacts(1, ("a.py:1: <img src=x> | `x`",))
    text = markdown_report({"t": facts}, {"t": CompileFacts(1)})
    assert "\\<img src=x\\>" in text
