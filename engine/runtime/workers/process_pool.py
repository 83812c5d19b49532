"""Worker process pool: warm processes, started on demand, fed from one priority queue.

Each process is fed by one thread. Workers are fresh interpreters at low priority: neither forks, nor
multiprocessing's spawn, which would run the user's ``__main__`` again. ``FOREGROUND`` in the environment of a pool
gives its workers the priority of this process: somebody waits for their answer. Each worker has its own folder for temporary
files, which is removed when the worker ends.
"""

from __future__ import annotations

import atexit
import contextlib
import itertools
import logging
import os
import pathlib
import queue
import selectors
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
import weakref
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from engine.errors import EngineError
from engine.interrupts.deferred_interrupts import allow_interrupts
from engine.process_state import make_lock
from engine.runtime.workers.worker_main import NICENESS, TEMP_FOLDER_PREFIX, receive, send

IMPORT_ROOT = str(pathlib.Path(__file__).parents[3])
# -P and the explicit root: a user's ``engine.py`` in the working directory must not be imported instead.
BOOTSTRAP = "import sys; sys.path.insert(0, sys.argv[1]); from engine.runtime.workers.worker_main import main; main()"

FOREGROUND = {NICENESS: "0"}
"""Environment of workers at this process's own priority."""

MIN_SECONDS_BEFORE_KILL = 1.0
"""Seconds that a task must have run before it is killed.

Finishing a shorter task is cheaper than starting a new process.
"""

INTERPRETER_IDLE_SECONDS = 8.0
"""Idle time after which a process of Triton's interpreter ends.

It holds torch and Triton, 150 MB of its own.
"""

COMPILER_IDLE_SECONDS = 20.0
"""Idle time after which a process that compiles kernels ends.

It holds Triton without torch, 30 to 60 MB of its own, and starts again in half a second.
"""

_log = logging.getLogger("engine")


class WorkerFailed(EngineError):
    """Raised when a worker's task raised, timed out or ended the process (see the message)."""


class _WorkerProcess:
    """One worker process, used by one thread only, except for ``kill``."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        self._folder = tempfile.mkdtemp(prefix=TEMP_FOLDER_PREFIX)
        self._popen = subprocess.Popen(
            [sys.executable, "-P", "-c", BOOTSTRAP, IMPORT_ROOT],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env={**os.environ, **environment, "TMPDIR": self._folder},
            start_new_session=True,  # Ctrl-C in the notebook must not reach the worker
        )

    def call(self, task: str, arguments: tuple[Any, ...], timeout: float) -> Any:
        """Run one task in the process and return its value.

        Raises:
            WorkerFailed: with the reason; the process has ended unless the task itself raised.
        """
        stdin, stdout = self._popen.stdin, self._popen.stdout
        assert stdin is not None
        assert stdout is not None
        try:
            send(stdin, (task, arguments))
            if not _readable(stdout, timeout):
                self.kill()
                raise WorkerFailed(f"it took longer than {timeout:g} s and was stopped")
            succeeded, value = receive(stdout)
        except (EOFError, OSError) as error:
            raise WorkerFailed(self._exit_reason()) from error
        if not succeeded:
            raise WorkerFailed(str(value))
        return value

    def _exit_reason(self) -> str:
        self.kill()
        code = self._popen.returncode
        exit_text = f"signal {signal.Signals(-code).name}" if code is not None and code < 0 else f"exit status {code}"
        return f"the worker process ended ({exit_text})"

    @property
    def is_alive(self) -> bool:
        """Return True while the process runs."""
        return self._popen.poll() is None

    def kill(self) -> None:
        """End the process and remove its files; may be called repeatedly and from any thread."""
        # Reap before killing, to report the exit status of a process that ended by itself.
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._popen.wait(0.2 if _is_at_eof(self._popen) else 0)
        with contextlib.suppress(OSError):
            self._popen.kill()
        self._popen.wait()
        shutil.rmtree(self._folder, ignore_errors=True)

    def release(self) -> None:
        """Close the pipes of a process that has ended; only from the thread that uses them."""
        self.kill()
        for pipe in (self._popen.stdin, self._popen.stdout):
            if pipe is not None:
                with contextlib.suppress(OSError):
                    pipe.close()


def _is_at_eof(popen: subprocess.Popen[bytes]) -> bool:
    return popen.stdout is not None and _readable(popen.stdout, 0)


def _readable(stream: Any, timeout: float) -> bool:
    """Return True if the stream has data or is at its end within ``timeout`` seconds."""
    with selectors.DefaultSelector() as selector:
        selector.register(stream, selectors.EVENT_READ)
        return bool(selector.select(timeout))


@dataclass(order=True)
class WorkerTask:
    """One call of ``function`` ("module:name") in a worker.

    ``on_done`` is called once, in a thread of the pool, with (value, None) or (None, reason). Tasks with lower
    ``priority`` run first, then in order of submission. A task that is no longer wanted at its turn is not run:
    its reason says so.
    """

    priority: int
    sequence: int
    function: str = field(compare=False)
    arguments: tuple[Any, ...] = field(compare=False)
    timeout: float = field(compare=False)
    on_done: Callable[[Any, str | None], None] = field(compare=False)
    is_wanted: Callable[[], bool] = field(compare=False, default=lambda: True)


class WorkerPool:
    """Pool of up to ``count`` worker processes; ``environment`` extends this process's own.

    A process without a task for ``idle_seconds`` ends; the next task starts another one. None: it stays.
    """

    def __init__(self, count: int, environment: Mapping[str, str], *, idle_seconds: float | None = None) -> None:
        self._count = count
        self._environment = dict(environment)
        self._idle_seconds = idle_seconds
        self._queue: queue.PriorityQueue[WorkerTask] = queue.PriorityQueue()
        self._numbers = itertools.count()
        self._lock = make_lock()
        self._threads: list[_WorkerThread] = []
        self._pid = os.getpid()
        _pools.add(self)

    def submit(
        self,
        function: str,
        arguments: tuple[Any, ...],
        on_done: Callable[[Any, str | None], None],
        *,
        rank: int = 0,
        timeout: float = 120.0,
        is_wanted: Callable[[], bool] = lambda: True,
    ) -> None:
        """Queue a task; start a process for it if all are busy and ``count`` allows."""
        self._after_fork()
        self._queue.put(WorkerTask(rank, next(self._numbers), function, arguments, timeout, on_done, is_wanted))
        with self._lock:
            if len(self._threads) < self._count and self._queue.qsize() > sum(lane.is_idle for lane in self._threads):
                self._threads.append(_WorkerThread(self._queue, self._environment, self._idle_seconds))

    def call(self, function: str, arguments: tuple[Any, ...], *, timeout: float = 120.0) -> Any:
        """Run a task and return its value.

        Raises:
            WorkerFailed: with the reason.
        """
        answers: queue.SimpleQueue[tuple[Any, str | None]] = queue.SimpleQueue()
        finished = threading.Event()
        finished.set()
        deliver = lambda value, reason: answers.put((value, reason))  # noqa: E731
        self.submit(function, arguments, deliver, timeout=timeout, is_wanted=finished.is_set)
        try:
            with allow_interrupts():
                value, reason = answers.get()
        except BaseException:  # Ctrl-C: the result is no longer wanted
            finished.clear()
            self.stop_unwanted(patience=0.0)
            raise
        if reason is not None:
            raise WorkerFailed(reason)
        return value

    @property
    def has_idle_process(self) -> bool:
        """True if a process has finished a task and waits for the next one."""
        return self._pid == os.getpid() and any(lane.is_idle and lane.has_process for lane in self._threads)

    def stop_unwanted(self, patience: float = MIN_SECONDS_BEFORE_KILL) -> None:
        """Kill processes that spent ``patience`` seconds on an unwanted task; restart on demand."""
        for lane in tuple(self._threads):
            lane.stop_unwanted(patience)

    def close(self) -> None:
        """End all processes and fail the queued tasks; the pool can be used again."""
        with self._lock:
            lanes, self._threads = self._threads, []
            tasks, self._queue = self._queue, queue.PriorityQueue()
        for lane in lanes:
            lane.close()
        with contextlib.suppress(queue.Empty):
            while True:
                tasks.get_nowait().on_done(None, "the worker pool was closed")
        for _ in lanes:  # wakes the threads
            tasks.put(WorkerTask(0, 0, "", (), 0.0, lambda _value, _reason: None))
        for lane in lanes:
            lane.join()

    def _after_fork(self) -> None:
        """Reset the pool in a forked process: its threads are gone, its workers are the parent's."""
        if self._pid != os.getpid():
            self._pid, self._threads, self._queue = os.getpid(), [], queue.PriorityQueue()
            self._lock = make_lock()


class _WorkerThread:
    """One thread and the worker process that it feeds."""

    def __init__(
        self, tasks: queue.PriorityQueue[WorkerTask], environment: Mapping[str, str], idle_seconds: float | None
    ) -> None:
        self._tasks = tasks
        self._idle_seconds = idle_seconds
        self._environment = environment
        self._process: _WorkerProcess | None = None
        self._current: WorkerTask | None = None
        self._task_started = 0.0
        self._closed = False
        self._lock = make_lock()  # guards ``_process`` against ``close`` while one starts
        self.is_idle = True
        self._thread = threading.Thread(target=self._run_tasks, name="engine-worker", daemon=True)
        self._thread.start()

    def _run_tasks(self) -> None:
        while True:
            task = self._next_task()
            if self._is_closed():
                if self._process is not None:
                    self._process.release()
                return
            self.is_idle, self._current, self._task_started = False, task, time.monotonic()
            try:
                task.on_done(*(self._run(task) if task.is_wanted() else (None, "it was cancelled")))
            except Exception:
                _log.exception("the callback for the result of a worker process failed")
            self.is_idle, self._current = True, None

    def _next_task(self) -> WorkerTask:
        """Wait for a task; end the process if none comes for the idle time."""
        try:
            return self._tasks.get(timeout=self._idle_seconds)
        except queue.Empty:
            with self._lock:
                process, self._process = self._process, None
            if process is not None:
                process.release()
            return self._tasks.get()

    def _run(self, task: WorkerTask) -> tuple[Any, str | None]:
        try:
            return self._live_process().call(task.function, task.arguments, task.timeout), None
        except WorkerFailed as error:
            return None, str(error)
        except Exception as error:
            return None, f"the worker process could not be used: {error}"

    def _live_process(self) -> _WorkerProcess:
        """Return the process; restart it if it has ended.

        Raises:
            WorkerFailed: the pool was closed meanwhile.
        """
        with self._lock:
            if self._closed:
                raise WorkerFailed("the worker pool was closed")
            if self._process is not None and not self._process.is_alive:
                self._process.release()
                self._process = None
            if self._process is None:
                self._process = _WorkerProcess(self._environment)
            return self._process

    def _is_closed(self) -> bool:
        return self._closed

    @property
    def has_process(self) -> bool:
        """True if its process runs."""
        process = self._process
        return process is not None and process.is_alive

    def stop_unwanted(self, patience: float) -> None:
        """Kill the process if its task is no longer wanted."""
        current, process = self._current, self._process
        is_long = time.monotonic() - self._task_started >= patience
        if current is not None and process is not None and is_long and not current.is_wanted():
            process.kill()

    def close(self) -> None:
        """Kill the process; the thread ends when it is woken."""
        with self._lock:
            self._closed = True
            if self._process is not None:
                self._process.kill()

    def join(self) -> None:
        """Wait for the thread briefly: a live thread can crash the interpreter's shutdown."""
        if self._thread is not threading.current_thread():
            self._thread.join(2.0)


_pools: weakref.WeakSet[WorkerPool] = weakref.WeakSet()


@atexit.register
def _close_all() -> None:
    for pool in tuple(_pools):
        if pool._pid == os.getpid():
            pool.close()
