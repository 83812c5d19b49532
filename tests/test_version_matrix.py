"""Counts of a run, comparison of two runs, and the Triton that belongs to a torch."""

from __future__ import annotations

import pathlib
import subprocess
import sys
import textwrap

import pytest

from tests.matching_triton import TRITON_OF_TORCH, matching_triton
from tests.version_matrix import Outcomes, main, render_counts, write_files

ROOT = pathlib.Path(__file__).parents[1]
SAMPLE = """
    import sys, pytest
    def test_passes(): pass
    @pytest.mark.parametrize("n", [1, 2])
    def test_of_two(n): assert n == 1, "two is wrong"
    def test_skips(): pytest.skip("no card here")
    @pytest.mark.xfail(reason="torch lacks it")
    def test_is_expected_to_fail(): raise ValueError
    @pytest.fixture
    def broken():
        yield
        raise RuntimeError("cannot clean up")
    def test_fails_after_passing(broken): pass
"""


@pytest.fixture
def folder(tmp_path: pathlib.Path) -> pathlib.Path:
    """Folder with tests of every outcome, and one file that does not import."""
    (tmp_path / "test_sample.py").write_text(textwrap.dedent(SAMPLE), encoding="utf-8")
    (tmp_path / "pytest.ini").write_text("[pytest]\n", encoding="utf-8")
    return tmp_path


def run_tests(folder: pathlib.Path, name: str, *arguments: str) -> str:
    """Run the tests of a folder with the plugin and return the file of counts."""
    ran = subprocess.run(
        [
            sys.executable, "-m", "pytest", "-p", "tests.version_matrix", "-p", "no:cacheprovider", "--rootdir", str(folder), "-q",
            "--counts", str(folder / name), *arguments, str(folder),
        ],
        cwd=ROOT, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert ran.returncode in (0, 1, 2), ran.stdout + ran.stderr
    return (folder / name).read_text(encoding="utf-8")


def counts_of(text: str) -> dict[str, int]:
    """Counts of a file by name."""
    lines = text.split("\n\n")[1].splitlines()
    return {name: int(number) for name, _, number in (line.partition(": ") for line in lines)}


@pytest.mark.thorough
@pytest.mark.parametrize("workers", ["0", "2"])
def test_counts_of_every_outcome(folder: pathlib.Path, workers: str) -> None:
    """Counts do not depend on workers; tests that did not pass have their reason."""
    import torch

    text = run_tests(folder, "a.txt", "-n", workers)
    assert f"torch: {torch.__version__}" in text
    assert counts_of(text) == {
        "collected": 6, "passed": 2, "failed": 2, "skipped": 1, "expected failures": 1, "not run": 0,
    }  # fmt: skip
    assert "test_sample.py::test_of_two[2]  AssertionError: two is wrong" in text
    assert "test_sample.py::test_fails_after_passing  RuntimeError: cannot clean up" in text
    assert "test_sample.py::test_skips  no card here" in text
    assert "test_sample.py::test_is_expected_to_fail  torch lacks it" in text


@pytest.mark.thorough
def test_an_import_error_and_tests_that_never_ran_are_counted(folder: pathlib.Path) -> None:
    """An import error is a failure; collected tests without a report are not run."""
    (folder / "test_other.py").write_text("import nothing_of_this_name", encoding="utf-8")
    counts = counts_of(run_tests(folder, "a.txt", "-n", "0"))
    assert (counts["failed"], counts["not run"], counts["collected"]) == (1, 6, 7)


def test_comparison_names_tests_that_differ(tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A comparison names tests that one run lacks and tests with another outcome."""
    write_files(tmp_path / "old.txt", Outcomes(["a", "b", "c"], {"a": "passed", "b": "passed", "c": "passed"}), {})
    write_files(tmp_path / "new.txt", Outcomes(["a", "b", "d"], {"a": "passed", "b": "failed", "d": "passed"}), {})
    assert main([str(tmp_path / "old.txt"), str(tmp_path / "new.txt")]) == 1
    assert capsys.readouterr().out.splitlines() == [
        "only in old: 1", "  c", "only in new: 1", "  d", "passed in old, failed in new: 1", "  b",
    ]  # fmt: skip
    assert main([str(tmp_path / "old.txt"), str(tmp_path / "old.tests")]) == 0
    assert "same outcomes" in capsys.readouterr().out


def test_counts_are_short_where_everything_passes() -> None:
    """A file of counts lists only tests that did not pass."""
    outcomes = Outcomes([f"test_{n}" for n in range(1000)], {f"test_{n}": "passed" for n in range(1000)})
    text = render_counts(outcomes, {"python": "3.14.0", "torch": "2.15.0"})
    assert text.splitlines()[:4] == ["python: 3.14.0", "torch: 2.15.0", "", "collected: 1000"]
    assert len(text) < 200


def test_triton_belongs_to_torch() -> None:
    """Each tested torch has its Triton; other torches and systems have none."""
    assert matching_triton("2.15.0+cpu", "linux") == "triton==3.9.*"
    assert matching_triton("2.11.0", "linux") == "triton==3.6.*"
    assert matching_triton("2.99.0", "linux") == matching_triton("2.15.0", "darwin") == ""
    assert min(map(int, (v.split(".")[1] for v in TRITON_OF_TORCH))) == 11
