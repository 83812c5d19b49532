"""Tests of work in a forked process."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from engine import forked_run
from engine.forked_run import RunEnd, WaitingRun, run_in_fork


@pytest.mark.parametrize(("waits", "ending"), [(0.0, RunEnd.TIMED_OUT), (60.0, RunEnd.RETURNED)])
def test_a_time_limit_leaves_out_what_other_processes_took(
    monkeypatch: pytest.MonkeyPatch, waits: float, ending: RunEnd
) -> None:
    """A run that waits for a processor of a busy machine is not one that never ends."""
    monkeypatch.setattr(forked_run, "_seconds_without_processor", lambda process: waits)
    assert run_in_fork(lambda: time.sleep(0.9), seconds=0.3).ending is ending


def test_the_delay_of_a_time_limit_is_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    """A run that only waits ends too."""
    monkeypatch.setattr(forked_run, "_seconds_without_processor", lambda process: 1e6)
    monkeypatch.setattr(forked_run, "MAX_DELAY", 2.0)
    assert run_in_fork(lambda: time.sleep(60), seconds=0.1).ending is RunEnd.TIMED_OUT


def test_the_time_without_a_processor_is_read_from_the_system() -> None:
    """It is some time for this process, and none for a process that does not exist."""
    if not Path("/proc/self/schedstat").exists():
        pytest.skip("this system has no statistics of its scheduler")
    assert 0 < forked_run._seconds_without_processor(os.getpid()) < 1e6
    assert forked_run._seconds_without_processor(-1) == 0.0


def test_a_waiting_process_answers_one_request() -> None:
    """It prepares once; what it prepared is not changed by this process later."""
    values = [1]

    def prepare() -> Callable[[int], list[int]]:
        prepared = list(values)
        return lambda request: [*prepared, request]

    waiting = WaitingRun(prepare, uses_gpu=False)
    values.append(2)
    assert waiting.is_ready
    assert waiting.ask(3).value == [1, 3]
    assert not waiting.is_ready


def test_a_failed_preparation_is_the_answer() -> None:
    """Nothing waits for a process that ended."""

    def prepare() -> Callable[[int], int]:
        raise ValueError("no such call")

    waiting = WaitingRun(prepare, uses_gpu=False)
    time.sleep(0.2)
    assert waiting.ask(1).problem == "the re-run failed: ValueError: no such call"


@pytest.mark.parametrize("by_time", [False, True])
def test_a_process_without_a_request_ends(monkeypatch: pytest.MonkeyPatch, by_time: bool) -> None:
    """It ends when nobody holds it, and after some time."""
    if by_time:
        monkeypatch.setattr(forked_run, "WAIT_SECONDS", 0.1)
    waiting = WaitingRun(lambda: lambda request: request, uses_gpu=False)
    process = waiting._child.process
    if by_time:
        assert os.waitid(os.P_PID, process, os.WEXITED | os.WNOWAIT) is not None
        assert not waiting.is_ready
    del waiting
    with pytest.raises(ProcessLookupError):
        os.kill(process, 0)
