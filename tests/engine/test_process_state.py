"""Test locks and settings of the process: forks, threads, and errors while compiling."""

from __future__ import annotations

import functools
import gc
import importlib
import logging
import os
import pathlib
import signal
import subprocess
import sys
import textwrap
import threading
from typing import Any

import pytest
import torch

import engine
from engine import process_state
from engine.process_state import SharedSetting, make_lock, make_rlock
from tests.global_state import differences, global_state

FORKS = textwrap.dedent(
    """
    import copy, os, signal, sys, threading, time
    import torch, engine
    from tests.forked_backwards import backward_raises_in_fork

    # Random numbers are drawn here only: a fork may copy their generator while a thread has locked it.
    initial = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.GELU(), torch.nn.Linear(8, 2))
    x = torch.randn(3, 4)

    def compile_and_run(backward=True):
        module = copy.deepcopy(initial)
        result = engine.compile(module, backend=sys.argv[1])(x)
        if backward:
            result.sum().backward()
        return torch.allclose(result, module(x))

    def compile_forever():
        while True:
            engine.reset()
            compile_and_run()

    torch.set_num_threads(1)  # the threads of OpenMP do not survive a fork either
    limit = sys.getrecursionlimit()
    compile_and_run()
    backward = not backward_raises_in_fork()
    threading.Thread(target=compile_forever, daemon=True).start()
    good = 0
    for n in range(int(sys.argv[2])):
        time.sleep(0.01 + 0.013 * (n % 17))
        child = os.fork()
        if not child:
            signal.alarm(200)  # ends a child that hangs
            os._exit(0 if compile_and_run(backward) and sys.getrecursionlimit() == limit else 1)
        good += os.waitpid(child, 0)[1] == 0
    print(good, flush=True)
    os._exit(0)
    """
)

FIRST_IMPORT = textwrap.dedent(
    """
    import copy, os, signal, sys, threading, time
    import engine

    def compile_and_run():
        import torch
        return bool(engine.compile(lambda x: x + 1, backend=sys.argv[1])(torch.ones(2)).eq(2).all())

    # A first operator in the other thread would hold locks of torch's C++ as well.
    threading.Thread(target=lambda: engine.compile(compile_and_run), daemon=True).start()
    good = 0
    for n in range(int(sys.argv[2])):
        time.sleep(0.05)
        child = os.fork()
        if not child:
            signal.alarm(200)  # ends a child that hangs
            os._exit(0 if compile_and_run() else 1)
        good += os.waitpid(child, 0)[1] == 0
    print(good, flush=True)
    os._exit(0)
    """
)

needs_fork = pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")


def _run_forks(backend: str, count: int, timeout: float, script: str = FORKS) -> int:
    made = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", script, backend, str(count)],
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
    )
    assert made.returncode == 0, made.stderr[-2000:]
    assert not made.stderr
    return int(made.stdout)


@pytest.mark.thorough
@needs_fork
def test_children_compile_although_another_thread_was_compiling() -> None:
    """A child forked while another thread compiles can compile."""
    assert _run_forks("eager", 3, 280.0) == 3


@pytest.mark.thorough
@needs_fork
def test_children_compile_although_another_thread_was_importing() -> None:
    """A child forked while another thread first imports the compiler and torch can compile."""
    assert _run_forks("eager", 2, 280.0, FIRST_IMPORT) == 2


@needs_fork
@pytest.mark.slow
@pytest.mark.parametrize("backend", ["eager", "aot_eager", "triton"])
def test_a_hundred_children_compile(backend: str) -> None:
    """All of 100 children compile, whatever the other thread was at."""
    assert _run_forks(backend, 100, 3600.0) == 100


@needs_fork
def test_locks_of_other_threads_are_free_in_a_child() -> None:
    """A child gets the locks of other threads free; what the forking thread holds stays held."""
    held, own, plain = make_rlock(), make_rlock(), make_lock()
    taken, leave = threading.Event(), threading.Event()

    def hold() -> None:
        with held, plain:
            taken.set()
            leave.wait()

    thread = threading.Thread(target=hold)
    thread.start()
    taken.wait()
    with own:
        child = os.fork()
        if not child:
            free = held.acquire(blocking=False) and plain.acquire(blocking=False)
            os._exit(0 if free and own._is_owned() else 1)  # type: ignore[attr-defined]
        assert os.waitpid(child, 0)[1] == 0
    leave.set()
    thread.join()


@needs_fork
def test_cached_properties_of_a_frozen_process_work_in_a_child() -> None:
    """A child of a process that froze its objects computes a cached property.

    Another thread of the parent was computing it.
    """
    parent, lock = os.getpid(), make_lock()
    taken, leave = threading.Event(), threading.Event()

    class Held:
        @functools.cached_property
        def value(self) -> int:
            if os.getpid() == parent:
                taken.set()
                leave.wait()
            return 1

    def compute() -> None:
        with lock:
            assert Held().value

    thread = threading.Thread(target=compute)
    thread.start()
    taken.wait()
    gc.freeze()
    child = os.fork()
    if not child:
        signal.alarm(60)  # ends a child that hangs
        os._exit(0 if Held().value == 1 else 1)
    assert os.waitpid(child, 0)[1] == 0
    leave.set()
    thread.join()


def test_a_setting_is_restored_by_the_last_thread() -> None:
    """Two users of a setting that overlap restore its first value, in any order of leaving."""
    values = {"level": 1}
    setting = SharedSetting(lambda: values["level"], lambda v: values.update(level=v), lambda v: 5)
    other = threading.Event(), threading.Event()

    def work() -> None:
        with setting:
            other[0].set()
            other[1].wait()

    thread = threading.Thread(target=work)
    with setting:
        thread.start()
        other[0].wait()
    assert values["level"] == 5
    other[1].set()
    thread.join()
    assert values["level"] == 1


def test_a_setting_that_the_user_changed_stays() -> None:
    """A value that someone else set inside the block is not overwritten."""
    values = {"level": 1}
    with SharedSetting(lambda: values["level"], lambda v: values.update(level=v), lambda v: 5):
        values["level"] = 7
    assert values["level"] == 7


def test_a_thread_that_enters_after_the_user_changed_a_setting_changes_it_again() -> None:
    """Each thread inside has the change that it needs; the user's value is restored."""
    values = {"level": 1}
    setting = SharedSetting(lambda: values["level"], lambda v: values.update(level=v), lambda v: max(v, 5))
    with setting:
        assert setting.outside() == 1
        values["level"] = 2
        assert setting.outside() == 2
        with setting:
            assert values["level"] == 5
            assert setting.outside() == 2
    assert values["level"] == setting.outside() == 2


def test_endless_recursion_is_found_while_another_thread_traces() -> None:
    """The limit of a thread's calls is the user's, not what tracing in another thread needs."""

    def forever(y: torch.Tensor) -> torch.Tensor:
        return forever(y)

    def caught(x: torch.Tensor) -> tuple[torch.Tensor, str]:
        try:
            return forever(x)
        except RecursionError as error:
            return x + 1, type(error).__name__

    begun, end = threading.Event(), threading.Event()

    def other_tracing() -> None:
        with process_state.higher_recursion_limit:
            begun.set()
            end.wait()

    thread = threading.Thread(target=other_tracing)
    thread.start()
    begun.wait()
    try:
        explanation = engine.explain(caught, torch.ones(2))
    finally:
        end.set()
        thread.join()
    assert not explanation.breaks
    assert explanation.graphs == 1


def test_a_thread_that_stands_still_in_an_import_is_waited_for_once(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A module may run a whole program: only the first fork waits, up to a limit."""
    begun, end = threading.Event(), threading.Event()
    (tmp_path / "whole_program.py").write_text("import sys; sys.events[0].set(); sys.events[1].wait()")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(sys, "events", (begun, end), raising=False)
    monkeypatch.setattr(process_state, "MAX_IDLE_SECONDS", 0.02)
    slept: list[float] = []
    monkeypatch.setattr(process_state.time, "sleep", slept.append)
    pause = process_state._ImportPause()
    thread = threading.Thread(target=importlib.import_module, args=("whole_program",))
    thread.start()
    begun.wait()
    counts = []
    for _ in range(2):
        pause.begin()
        pause.end()
        counts.append(len(slept))
    end.set()
    thread.join()
    assert counts[0] > 0
    assert counts[1] == counts[0]


def _fail(*_: Any) -> None:
    raise RuntimeError("forced")


@pytest.mark.parametrize(
    "place",
    [
        "engine.trace.driver.TraceAttempt",
        "engine.trace.driver.tracing",
        "engine.trace.driver.TracingContext",
        "engine.trace.driver.without_torch_function_modes",
        "engine.trace.driver.higher_recursion_limit",
        "engine.trace.tracer.Tracer.make_user_exception",
        "engine.trace.attempt.TraceAttempt.run",
        "engine.graph.lazy_module.make_fx",
        "engine.aot.functionalize.fake_mode_of",
        "engine.aot.joint._SequenceNrInterpreter.run_node",
        "engine.backends.call_backend._compile",
        "engine.pipeline.compile_check",
        "engine.pipeline.link_frame",
        "engine.pipeline.record_compilation",
    ],
)
def test_a_failed_compilation_leaves_the_process_as_it_was(place: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """An internal error restores all global state; the result is eager's."""

    def step(x: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            y = x.sin()
        return (x * y).relu().sum()

    x = torch.randn(3, requires_grad=True)
    engine.compile(step, backend="aot_eager")(x).backward()  # everything is imported
    engine.compile(lambda x: print(end=""), backend="eager")(x)  # the logger of graph breaks exists
    engine.reset()
    before = global_state()
    with monkeypatch.context() as patch:
        patch.setattr(place, _fail)
        compiled = engine.compile(step, backend="aot_eager")
        result = compiled(x)
    assert not differences(before, global_state())
    assert torch.equal(result, step(x))


def test_the_log_of_fake_tensors_is_restored() -> None:
    """The logger that is silenced while tracing has its own state after a call that raises."""
    logger = logging.getLogger(process_state.FAKE_TENSOR_LOGGER)
    logger.disabled = True
    try:
        with pytest.raises(RuntimeError):
            engine.compile(lambda x: x @ torch.ones(5), backend="eager")(torch.ones(3))
        assert logger.disabled
    finally:
        logger.disabled = False
