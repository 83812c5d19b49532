"""Tests of the pool of worker processes."""

from __future__ import annotations

import pathlib
import time

from engine.runtime.workers.process_pool import WorkerPool


def test_an_idle_process_ends_and_the_next_task_starts_another() -> None:
    """A process without a task gives its memory back; the pool goes on working."""
    pool = WorkerPool(1, {}, idle_seconds=0.1)
    try:
        first = pool.call("os:getpid", ())
        deadline = time.monotonic() + 20
        while pathlib.Path(f"/proc/{first}").exists() and time.monotonic() < deadline:
            time.sleep(0.02)
        assert not pathlib.Path(f"/proc/{first}").exists()
        assert pool.call("os:getpid", ()) != first
    finally:
        pool.close()
