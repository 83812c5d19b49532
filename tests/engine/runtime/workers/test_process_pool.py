"""Tests of the pool of worker processes."""

from __future__ import annotations

import os
import pathlib
import time

import pytest

from engine.runtime.workers.process_pool import FOREGROUND, WorkerPool


def test_an_idle_process_ends_and_the_next_task_starts_another() -> None:
    """A process without a task gives its memory back; the pool goes on working.

    A pool that somebody waits for has this process's priority.
    """
    pool = WorkerPool(1, FOREGROUND, idle_seconds=0.1)
    try:
        first = pool.call("os:getpid", ())
        deadline = time.monotonic() + 20
        while pathlib.Path(f"/proc/{first}").exists() and time.monotonic() < deadline:
            time.sleep(0.02)
        assert not pathlib.Path(f"/proc/{first}").exists()
        assert pool.call("os:getpid", ()) != first
        assert pool.call("os:nice", (0,)) == os.nice(0)
    finally:
        pool.close()


@pytest.mark.thorough
def test_memory_that_a_task_freed_goes_back_to_the_system() -> None:
    """Below a block in use at the end of the heap, pages of freed blocks are given back."""
    pool = WorkerPool(1, {})
    try:
        resident = pathlib.Path(f"/proc/{pool.call('os:getpid', ())}/statm")
        pool.call("tests.engine.runtime.worker_tasks:load", ())
        before = int(resident.read_text().split()[1])
        pool.call("tests.engine.runtime.worker_tasks:blocks_below_one_in_use", ())
        pool.call("os:getpid", ())  # The process has trimmed its heap before it takes a task.
        assert (int(resident.read_text().split()[1]) - before) * 4096 < 40_000_000
    finally:
        pool.close()
