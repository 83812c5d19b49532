"""Worker process main loop: read tasks from stdin, write results to the original stdout.

A task is (function as "module:name", arguments). A result is (True, value) or (False, reason). Both are pickles
after their length. No other engine module is imported before a task names it; the user's ``__main__`` is never imported.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import pickle
import shutil
import struct
import sys
import threading
import time
from typing import IO, Any

from engine.runtime.heap import trim_heap

LENGTH_HEADER = struct.Struct("<Q")
TEMP_FOLDER_PREFIX = "engine-worker-"
"""Name prefix of the folders for temporary files."""
NICENESS = "ENGINE_WORKER_NICENESS"
"""Environment variable: the priority of a worker below that of its parent, 10 if unset."""


def send(stream: IO[bytes], value: object) -> None:
    """Write one pickled value with its length."""
    data = pickle.dumps(value, protocol=pickle.HIGHEST_PROTOCOL)
    stream.write(LENGTH_HEADER.pack(len(data)))
    stream.write(data)  # not joined: a copy of large tensors
    stream.flush()


def receive(stream: IO[bytes]) -> Any:
    """Read one pickled value.

    Raises:
        EOFError: the other side has closed the pipe.
    """
    head = _read_exactly(stream, LENGTH_HEADER.size)
    return pickle.loads(_read_exactly(stream, LENGTH_HEADER.unpack(head)[0]))  # noqa: S301 - both ends of the pipe are this package


def _read_exactly(stream: IO[bytes], count: int) -> bytes:
    data = stream.read(count)
    if data is None or len(data) < count:
        raise EOFError
    return data


def main() -> None:
    """Run tasks until stdin closes, then remove the folder for temporary files in ``TMPDIR``."""
    threading.Thread(target=_exit_with_parent, args=(os.getppid(),), daemon=True).start()
    try:
        _run_jobs()
    finally:
        _remove_folder()


def _exit_with_parent(parent: int) -> None:
    """Exit when the parent died without closing the pipe (killed while a long task runs here)."""
    while os.getppid() == parent:
        time.sleep(1.0)
    _remove_folder()
    os._exit(0)


def _remove_folder() -> None:
    folder = os.environ.get("TMPDIR", "")
    if os.path.basename(folder).startswith(TEMP_FOLDER_PREFIX):
        shutil.rmtree(folder, ignore_errors=True)


def _run_jobs() -> None:
    # Compilers print to stdout; their output must not mix with the results, so stdout becomes stderr.
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    if hasattr(os, "nice"):
        with contextlib.suppress(OSError):
            os.nice(int(os.environ.get(NICENESS, "10")))
    while True:
        try:
            task, arguments = receive(sys.stdin.buffer)
        except EOFError:
            return
        try:
            module, _, name = task.partition(":")
            answer = (True, getattr(importlib.import_module(module), name)(*arguments))
        except Exception as error:
            answer = (False, f"{type(error).__name__}: {error}")
        send(answers, answer)
        del answer, arguments
        trim_heap()
