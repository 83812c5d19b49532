"""A worker process's side of the pipe: take a task from standard input, answer on what was standard output, until the pipe closes.

A task is (function as "module:name", arguments); an answer (True, value) or (False, reason). Both are pickles behind their length.
Nothing of the engine is imported before a task names it, and the user's ``__main__`` never is.
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

LENGTH_HEADER = struct.Struct("<Q")
TEMP_FOLDER_PREFIX = "engine-worker-"
"""What names of the folders for temporary files begin with."""


def send(stream: IO[bytes], value: object) -> None:
    """Write one value."""
    data = pickle.dumps(value, protocol=pickle.HIGHEST_PROTOCOL)
    stream.write(LENGTH_HEADER.pack(len(data)) + data)
    stream.flush()


def receive(stream: IO[bytes]) -> Any:
    """Read one value.

    Raises:
        EOFError: the other side is gone.
    """
    head = _read_exactly(stream, LENGTH_HEADER.size)
    return pickle.loads(_read_exactly(stream, LENGTH_HEADER.unpack(head)[0]))  # noqa: S301 - both ends are ours


def _read_exactly(stream: IO[bytes], count: int) -> bytes:
    data = stream.read(count)
    if data is None or len(data) < count:
        raise EOFError
    return data


def main() -> None:
    """Serve tasks until standard input closes, then remove the folder for temporary files that the parent gave."""
    threading.Thread(target=_exit_with_parent, args=(os.getppid(),), daemon=True).start()
    try:
        _serve()
    finally:
        _remove_folder()


def _exit_with_parent(parent: int) -> None:
    """Leave when the parent is gone without closing the pipe in time (killed, while a long task runs here)."""
    while os.getppid() == parent:
        time.sleep(1.0)
    _remove_folder()
    os._exit(0)


def _remove_folder() -> None:
    folder = os.environ.get("TMPDIR", "")
    if os.path.basename(folder).startswith(TEMP_FOLDER_PREFIX):
        shutil.rmtree(folder, ignore_errors=True)


def _serve() -> None:
    # Compilers print: what they print must not land among the answers.
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    if hasattr(os, "nice"):
        with contextlib.suppress(OSError):
            os.nice(10)
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
