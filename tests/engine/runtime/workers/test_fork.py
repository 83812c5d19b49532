"""Forks of the process: they say nothing, and all go through one function."""

from __future__ import annotations

import ast
import os
import pathlib
import threading
import warnings

import pytest

from engine.runtime.workers import fork

ROOT = pathlib.Path(__file__).parents[4]


def test_fork_beside_threads_says_nothing() -> None:
    """From Python 3.12 on, ``os.fork`` warns where other threads run; this fork does not."""
    end = threading.Event()
    thread = threading.Thread(target=end.wait)
    thread.start()
    try:
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            child = fork.fork_process()
            if child == 0:
                os._exit(7)
            assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
        assert said == []
    finally:
        end.set()
        thread.join()


@pytest.mark.thorough
def test_every_fork_goes_through_it() -> None:
    """No other module of the packages forks, or starts processes with multiprocessing."""
    found = []
    for path in (*ROOT.glob("engine/**/*.py"), *ROOT.glob("notebook_ext/**/*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            names = [a.name for a in node.names] if isinstance(node, ast.Import | ast.ImportFrom) else []
            if isinstance(node, ast.ImportFrom):
                names.append(node.module or "")
            forks = isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "fork"
            if forks or any(n.partition(".")[0] == "multiprocessing" for n in names):
                found.append(path.relative_to(ROOT).as_posix())
    assert found == ["engine/runtime/workers/fork.py"]
