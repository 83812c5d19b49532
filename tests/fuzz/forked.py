"""Run checks in forked children with a time limit, to find crashes and hangs too."""

from __future__ import annotations

import contextlib
import gc
import json
import os
import select
import signal
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from typing import IO

LIMIT = 60.0
"""Seconds until a check counts as hanging."""
GARBAGE_THRESHOLD = 10_000
"""New objects until a worker collects garbage: a compile makes many that live on."""
MAX_CHECKS = 300
"""Checks that one worker makes, so that what they leave in memory stays small."""


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
    return _reply(child, received, is_hanging=is_hanging, limit=limit)


class Worker:
    """A forked child that makes one check after another, all with the caches of those before.

    A new child takes over after a difference, a crash, a hang or ``MAX_CHECKS`` checks.
    """

    def __init__(self, check: Callable[[int, str], list[str]], limit: float = LIMIT) -> None:
        self._check = check
        self._limit = limit
        self._child = 0
        self._requests: IO[bytes] | None = None
        self._reading = -1
        self.done: list[tuple[int, str]] = []
        """Checks of the present child, the last one included."""

    def run(self, seed: int, backend: str) -> list[str]:
        """Return the lines of a check, or how the child ended."""
        if self._requests is None or len(self.done) >= MAX_CHECKS:
            self.close()
            self._start()
        assert self._requests is not None
        self.done.append((seed, backend))
        try:
            self._requests.write(json.dumps([seed, backend]).encode() + b"\n")
            self._requests.flush()
        except BrokenPipeError:
            pass  # the child has ended, as reading shows
        received, is_hanging = _read(self._reading, self._limit, is_line=True)
        if received.endswith(b"\n"):
            lines: list[str] = json.loads(received)
            return lines
        child = self._child
        self._forget()
        return _reply(child, b"", is_hanging=is_hanging, limit=self._limit)

    def close(self) -> None:
        """End the child."""
        if self._child:
            os.kill(self._child, signal.SIGKILL)
            os.waitpid(self._child, 0)
            self._forget()

    def _start(self) -> None:
        requests, sending = os.pipe()
        self._reading, replying = os.pipe()
        sys.stdout.flush()
        self.done = []
        self._child = os.fork()
        if not self._child:
            os.close(sending)
            os.close(self._reading)
            self._serve(requests, replying)
        os.close(requests)
        os.close(replying)
        self._requests = os.fdopen(sending, "wb")

    def _serve(self, requests: int, replying: int) -> None:
        gc.freeze()  # what the parent has loaded is no garbage of a program
        gc.set_threshold(GARBAGE_THRESHOLD)
        _silence()
        with os.fdopen(requests, "rb") as lines, os.fdopen(replying, "wb") as replies:
            for line in lines:
                seed, backend = json.loads(line)
                replies.write(json.dumps(_lines_of(lambda: self._check(seed, backend))).encode() + b"\n")  # noqa: B023
                replies.flush()
        os._exit(0)

    def _forget(self) -> None:
        assert self._requests is not None
        with contextlib.suppress(BrokenPipeError):
            self._requests.close()
        os.close(self._reading)
        self._child, self._requests = 0, None


def _reply(child: int, received: bytes, *, is_hanging: bool, limit: float) -> list[str]:
    """Wait for a child, and return the lines it sent or how it ended."""
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
    _silence()
    lines = _lines_of(check)
    with os.fdopen(writing, "w") as pipe:
        json.dump(lines, pipe)
    os._exit(0)


def _silence() -> None:
    silent = os.open(os.devnull, os.O_WRONLY)
    os.dup2(silent, 1)
    os.dup2(silent, 2)


def _lines_of(check: Callable[[], Sequence[str]]) -> Sequence[str]:
    try:
        return check()
    except BaseException as error:  # whatever ends the check is its result
        place = traceback.extract_tb(error.__traceback__)[-1]
        text = " ".join(str(error).split())[:300]
        return [f"exception outside of the call: {type(error).__name__}: {text} ({place.filename}:{place.lineno})"]


def _read(reading: int, limit: float, *, is_line: bool = False) -> tuple[bytes, bool]:
    """Read until the end, or one line; and whether the time was too short."""
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
        if is_line and part.endswith(b"\n"):
            return received, False
