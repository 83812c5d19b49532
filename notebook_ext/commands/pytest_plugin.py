"""Pytest plugin: ``--compile-report`` compares what tests compile with a baseline.

Every run of pytest in the environment loads it, so it imports torch only for a report.
"""

from __future__ import annotations

import importlib

import pytest

OPTION, DEFAULT_REPORT = "--compile-report", "compile-report.md"


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add ``--compile-report`` and ``--compile-baseline``."""
    group = parser.getgroup("compile", "graphs, breaks and recompiles of compiled code")
    group.addoption(
        OPTION,
        nargs="?",
        const=DEFAULT_REPORT,
        metavar="FILE",
        help="record what each test compiles; write a Markdown report (default: compile-report.md)",
    )
    group.addoption(
        "--compile-baseline",
        default="compile-baseline.json",
        metavar="FILE",
        help="baseline, relative to the root folder; a test that exceeds it fails",
    )
    group.addoption("--compile-update", action="store_true", help="write the baseline instead of comparing with it")


def pytest_load_initial_conftests(args: list[str]) -> None:
    """Keep the option from taking, and overwriting, the test file that follows it."""
    args[:] = [f"{OPTION}={DEFAULT_REPORT}" if a == OPTION else a for a in args]


def pytest_configure(config: pytest.Config) -> None:
    """Register the recorder if an option needs it."""
    if config.getoption(OPTION) or config.getoption("--compile-update"):
        report = importlib.import_module("notebook_ext.commands.compile_report")
        config.pluginmanager.register(report.CompileReportPlugin(config), "compile-report")
