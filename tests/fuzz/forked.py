"""Run a check in a forked child with a time limit, to find crashes and hangs too."""

from __future__ import annotations

import json
import os
import select
import signal
import sys
import time
import traceback
from collections.abc import Callable

LIMIT = 60.0
"""Seconds until a check counts as hanging."""


def run_forked(check: Callable[[], list[str]], limit: float = LIMIT) -> list[str]:
    """Return the lines that ``check`` returns in a child, or how the child ended."""
    reading, writing = os.pipe()
    sys.stdout.flush()
    child = os.fork()
    if child == 0:
        os.close(reading)
        _run_and_exit(check, writing)
    os.close(writing)
    received, is_hanging = _read(reading, limit)
    os.close(reading)
    if is_hanging:
        os.kill(child, signal.SIGKILL)
    _, status = os.waitpid(child, 0)
    if is_hanging:
        return [f"hang: no result after {limit:.0f} seconds"]
    if os.WIFSIGNALED(status):
        return [f"crash: {signal.Signals(os.WTERMSIG(status)).name}"]
    if not received:
        return [f"crash: exit code {os.waitstatus_to_exitcode(status)}"]
    lines: list[str] = json.loads(received)
    return lines


def _run_and_exit(check: Callable[[], list[str]], writing: int) -> None:
    silent = os.open(os.devnull, os.O_WRONLY)
    os.dup2(silent, 1)
    os.dup2(silent, 2)
    try:
        lines = check()
    except BaseException as error:  # whatever ends the check is its result
        place = traceback.extract_tb(error.__traceback__)[-1]
        text = " ".join(str(error).split())[:300]
        lines = [f"exception outside of the call: {type(error).__name__}: {text} ({place.filename}:{place.lineno})"]
    with os.fdopen(writing, "w") as pipe:
        json.dump(lines, pipe)
    os._exit(0)


def _read(reading: int, limit: float) -> tuple[bytes, bool]:
    end = time.monotonic() + limit
    received = b""
    while True:
        ready, _, _ = select.select([reading], [], [], max(0.0, end - time.monotonic()))
        if not ready:
            return received, True
        part = os.read(reading, 1 << 16)
        if not part:
            return received, False
        received += part
