"""Outcomes of a test run on one pair of Python and torch, in files that compare.

As a plugin of pytest, ``-p tests.version_matrix --counts matrix/pair.txt`` writes two files: counts and every test
that did not pass, for people, and beside it ``pair.tests``, the outcome of each collected test. As a command,

    python -m tests.version_matrix matrix/a.txt matrix/b.txt

prints the tests that only one run collected and those whose outcome differs. Its exit code is 1 if there are any.
"""

from __future__ import annotations

import importlib.metadata
import itertools
import pathlib
import platform
import sys
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import pytest

OUTCOMES = ("passed", "failed", "skipped", "expected failures", "not run")
SHOWN = 40
"""Lines that a comparison prints under one heading."""


@dataclass
class Outcomes:
    """Outcome of each collected test by node id; other outcomes than a pass have reasons."""

    collected: list[str] = field(default_factory=list)
    outcome: dict[str, str] = field(default_factory=dict)
    reason: dict[str, str] = field(default_factory=dict)

    def add(self, report: pytest.TestReport) -> None:
        """Take one phase of a test: a failed one decides, a skipped one hides a pass."""
        known = self.outcome.get(report.nodeid)
        if report.failed:
            found = "failed"
        elif report.skipped:
            found = "expected failures" if hasattr(report, "wasxfail") else "skipped"
        else:
            found = "passed"
        if known in (None, "passed") or found == "failed":
            self.outcome[report.nodeid] = found
            if found != "passed":
                self.reason[report.nodeid] = _reason(report)

    def by_test(self) -> dict[str, str]:
        """Return the outcome of each test, collected or reported, in order of node ids."""
        return {test: self.outcome.get(test, "not run") for test in sorted({*self.collected, *self.outcome})}


def _reason(report: pytest.TestReport) -> str:
    """First line of why a test did not pass."""
    if isinstance(report.longrepr, tuple):
        text = str(report.longrepr[2]).removeprefix("Skipped: ")
    else:
        crash = getattr(report.longrepr, "reprcrash", None)
        text = getattr(report, "wasxfail", "") or (crash.message if crash else str(report.longrepr or ""))
    return text.strip().partition("\n")[0][:200]


def versions() -> dict[str, str]:
    """Versions of the environment, as the head of a file of counts."""
    import torch

    try:
        triton = importlib.metadata.version("triton")
    except importlib.metadata.PackageNotFoundError:
        triton = "none"
    return {
        "python": platform.python_version(),
        "torch": str(torch.__version__),
        "build": f"CUDA {torch.version.cuda}" if torch.version.cuda else "CPU",
        "triton": triton,
        "platform": platform.platform(terse=True),
    }


def render_counts(outcomes: Outcomes, head: Mapping[str, str]) -> str:
    """Return versions, counts and every test that did not pass, as lines of text."""
    by_test = outcomes.by_test()
    count = Counter(by_test.values())
    lines = [f"{name}: {text}" for name, text in head.items()]
    lines += ["", f"collected: {len(by_test)}", *(f"{outcome}: {count[outcome]}" for outcome in OUTCOMES)]
    for outcome in OUTCOMES[1:]:
        tests = [test for test, found in by_test.items() if found == outcome]
        if tests:
            lines += ["", f"{outcome}:"]
            lines += [f"  {test}  {outcomes.reason.get(test, '')}".rstrip() for test in tests]
    return "\n".join(lines) + "\n"


def write_files(path: pathlib.Path, outcomes: Outcomes, head: Mapping[str, str]) -> None:
    """Write counts to ``path``, and the outcome of each test beside it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(render_counts(outcomes, head), encoding="utf-8")
    lines = (f"{outcome}\t{test}\n" for test, outcome in outcomes.by_test().items())
    path.with_suffix(".tests").write_text("".join(lines), encoding="utf-8")


def read_tests(path: pathlib.Path) -> dict[str, str]:
    """Read the outcome of each test of a run, given either of its two files."""
    rows = path.with_suffix(".tests").read_text(encoding="utf-8").splitlines()
    return {test: outcome for outcome, _, test in (row.partition("\t") for row in rows)}


def compare(first: pathlib.Path, second: pathlib.Path) -> Iterator[str]:
    """Yield tests that one run lacks, and tests with different outcomes, under headings."""
    one, two = read_tests(first), read_tests(second)
    missing = {f"only in {first.stem}": one.keys() - two.keys(), f"only in {second.stem}": two.keys() - one.keys()}
    changed: dict[str, set[str]] = {}
    for test in one.keys() & two.keys():
        if one[test] != two[test]:
            changed.setdefault(f"{one[test]} in {first.stem}, {two[test]} in {second.stem}", set()).add(test)
    for heading, tests in itertools.chain(missing.items(), sorted(changed.items())):
        if tests:
            yield f"{heading}: {len(tests)}"
            yield from (f"  {test}" for test in sorted(tests)[:SHOWN])
            if len(tests) > SHOWN:
                yield f"  and {len(tests) - SHOWN} more"


class CountsPlugin:
    """Gather outcomes in the process that has all reports, and write them when the run ends."""

    def __init__(self, path: pathlib.Path) -> None:
        self.path = path
        self.outcomes = Outcomes()
        self.started = time.monotonic()

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        """Take what this process collected: without workers, all tests."""
        self.outcomes.collected = [item.nodeid for item in session.items]

    @pytest.hookimpl(optionalhook=True)
    def pytest_xdist_node_collection_finished(self, node: Any, ids: list[str]) -> None:
        """Take what a worker collected; each one collects all tests."""
        self.outcomes.collected = ids

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        """Count a file that fails to import as one failed test."""
        if report.failed:
            self.outcomes.outcome[report.nodeid] = "failed"
            crash = getattr(report.longrepr, "reprcrash", None)
            self.outcomes.reason[report.nodeid] = crash.message if crash else str(report.longrepr).splitlines()[-1]

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Take the report of one phase of a test."""
        self.outcomes.add(report)

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        """Write both files, also of a run that was interrupted."""
        head = versions() | {
            "selection": " ".join(map(str, session.config.invocation_params.args)),
            "seconds": str(round(time.monotonic() - self.started)),
        }
        write_files(self.path, self.outcomes, head)


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add ``--counts``."""
    parser.addoption("--counts", metavar="FILE", help="write counts and outcomes of the tests to FILE")


def pytest_configure(config: pytest.Config) -> None:
    """Count in the main process alone: workers send their reports there."""
    path = config.getoption("--counts")
    if path and not hasattr(config, "workerinput"):
        config.pluginmanager.register(CountsPlugin(pathlib.Path(path).absolute()))


def main(arguments: list[str]) -> int:
    """Compare two runs; 0 if their tests and outcomes are the same."""
    if len(arguments) != 2:
        print("usage: python -m tests.version_matrix FIRST.txt SECOND.txt")
        return 2
    lines = list(compare(pathlib.Path(arguments[0]), pathlib.Path(arguments[1])))
    print("\n".join(lines or ["The same tests with the same outcomes."]))
    return int(bool(lines))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
