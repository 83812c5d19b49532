"""Records what tests compile, for ``--compile-report`` of the pytest plugin."""

from __future__ import annotations

import contextlib
import json
import logging
import sys
from collections.abc import Generator, Iterator
from pathlib import Path

import pytest
import torch

import engine
from engine.records.base import RecordError
from engine.records.compile_facts import CompileBaseline, CompileFacts, compile_facts, markdown_report, regressions
from engine.records.session import Session
from notebook_ext.commands.pytest_plugin import OPTION

PROPERTY = "compile_facts"
"""Name of the property of a test report that carries the facts, also between processes."""


class CompileReportPlugin:
    """Records tests, compares with the baseline, and writes the report at the end."""

    def __init__(self, config: pytest.Config) -> None:
        self.baseline_path = config.rootpath / str(config.getoption("--compile-baseline"))
        self.report_path = config.getoption(OPTION)
        self.is_update = bool(config.getoption("--compile-update"))
        self.is_worker = hasattr(config, "workerinput")
        self.baseline = None if self.is_update else _load_baseline(self.baseline_path)
        self.tests: dict[str, CompileFacts] = {}

    @pytest.hookimpl(wrapper=True, trylast=True)
    def pytest_runtest_call(self, item: pytest.Item) -> Generator[None, None, None]:
        """Record the test, without code of earlier tests; fail it if it exceeds the baseline."""
        _forget_compiled_code()
        with _recorded() as sessions:
            yield
        facts = compile_facts(sessions)
        if facts.is_empty:
            return
        item.user_properties.append((PROPERTY, json.dumps(facts.to_dict())))
        known = (self.baseline or {}).get(item.nodeid)
        problems = regressions(facts, known) if known is not None else ()
        if problems:
            pytest.fail("compiles more than the baseline:\n" + "\n".join(f"  {p}" for p in problems), pytrace=False)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Collect the facts of a test, which a worker of pytest-xdist may have run."""
        if report.when == "call":
            for name, value in report.user_properties:
                if name == PROPERTY:
                    self.tests[report.nodeid] = CompileFacts.from_dict(json.loads(str(value)))

    def pytest_sessionfinish(self) -> None:
        """Write the report and, with ``--compile-update``, the baseline."""
        if self.is_worker:
            return
        tests = dict(sorted(self.tests.items()))
        if self.is_update:
            text = json.dumps(CompileBaseline(tests).to_dict(), indent=1, ensure_ascii=True)
            self.baseline_path.write_text(text + "\n", encoding="utf-8")
        if self.report_path:
            Path(self.report_path).write_text(markdown_report(tests, self.baseline), encoding="utf-8")

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """Say what was written."""
        written = [str(self.baseline_path)] if self.is_update else []
        written += [self.report_path] if self.report_path else []
        terminalreporter.write_line(f"compile report: {len(self.tests)} tests compile; wrote {', '.join(written)}")


def _forget_compiled_code() -> None:
    """Empty the caches, so that tests compile the same in any order."""
    engine.reset()
    if "torch._dynamo" in sys.modules:
        torch.compiler.reset()


@contextlib.contextmanager
def _recorded() -> Iterator[tuple[Session, Session]]:
    """Record this engine and stock torch.compile."""
    with _without_captured_trace(), engine.record() as ours, engine.observe_torch() as stock:
        yield ours, stock


@contextlib.contextmanager
def _without_captured_trace() -> Iterator[None]:
    """Keep torch's trace out of the log that pytest prints for a failed test.

    pytest 9.1 captures loggers that do not propagate too.
    """
    log = logging.getLogger("torch.__trace")
    captured = [h for h in log.handlers if type(h).__module__ == "_pytest.logging"]
    for handler in captured:
        log.removeHandler(handler)
    try:
        yield
    finally:
        for handler in captured:
            log.addHandler(handler)


def _load_baseline(path: Path) -> dict[str, CompileFacts] | None:
    """Return the baseline; None if there is no file.

    Raises:
        pytest.UsageError: the file is no baseline.
    """
    if not path.is_file():
        return None
    try:
        return CompileBaseline.from_dict(json.loads(path.read_text(encoding="utf-8"))).tests
    except (RecordError, ValueError) as error:
        raise pytest.UsageError(f"{path.name} is no baseline of compile reports: {error}") from error
