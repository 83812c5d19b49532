"""Report mismatches of lowered programs in Triton's interpreter, in separate processes.

Each has TRITON_INTERPRET=1 from its start. The processes that run tests share the work: a batch of cases runs once.
"""

from __future__ import annotations

import fcntl
import functools
import json
import os
import pathlib
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

ROOT = pathlib.Path(__file__).parents[3]
BATCHES = 2
"""As many as the cores of a small machine: each batch imports torch and Triton again."""


@functools.cache
def run_in_interpreter(*flags: str) -> dict[str, list[str]]:
    """Run cases in one process and return the mismatches by case name.

    ``flags`` select cases (``run_cases_in_interpreter``).
    """
    done = subprocess.run(
        [sys.executable, "-m", "tests.engine.lowering.run_cases_in_interpreter", *flags],
        cwd=ROOT,
        env={**os.environ, "TRITON_INTERPRET": "1"},
        capture_output=True,
        text=True,
        timeout=900,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    found: dict[str, list[str]] = json.loads(done.stdout.splitlines()[-1])
    return found


def run_in_batches(
    request: pytest.FixtureRequest, factory: pytest.TempPathFactory, *flags: str
) -> dict[str, list[str]]:
    """Return the mismatches of the batch that holds the running test's case.

    Only cases of selected tests run. A process that finds its batch in work runs another batch, and else waits.
    """
    names = sorted({
        item.callspec.params["name"]
        for item in request.session.items
        if isinstance(item, pytest.Function) and (item.path, item.originalname) == (request.path, request.node.originalname)
    })  # fmt: skip
    wanted = names.index(request.node.callspec.params["name"]) % BATCHES
    base = factory.getbasetemp()
    folder = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "-".join(["interpreted", *flags])
    folder.mkdir(exist_ok=True)
    for waits in (False, True):
        for batch in (wanted, *(n for n in range(min(BATCHES, len(names))) if n != wanted)):
            if not (folder / f"{wanted}.json").exists():
                _run_batch(folder, batch, (*flags, *names[batch::BATCHES]), waits=waits and batch == wanted)
    found: dict[str, list[str]] = json.loads((folder / f"{wanted}.json").read_text(encoding="utf-8"))
    return found


def _run_batch(folder: pathlib.Path, batch: int, flags: tuple[str, ...], *, waits: bool) -> None:
    """Run a batch unless its result is there or another process runs it."""
    result = folder / f"{batch}.json"
    with _locked(folder / f"{batch}.lock", waits=waits) as is_locked:
        if is_locked and not result.exists():
            text = json.dumps(run_in_interpreter(*flags))
            result.with_suffix(".new").write_text(text, encoding="utf-8")
            result.with_suffix(".new").replace(result)


@contextmanager
def _locked(path: pathlib.Path, *, waits: bool) -> Iterator[bool]:
    """Hold a lock between processes; yield False if another one has it and nobody waits."""
    with path.open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX if waits else fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            yield False
        else:
            yield True
