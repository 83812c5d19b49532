"""Defer Ctrl-C while a frame is compiled, and deliver it at the next safe point.

torch's C++ calls Python back at places that must not raise: a look-up of a tensor's device, a weak reference's callback.
A ``KeyboardInterrupt`` there ends the process or is lost. So the main thread compiles with a handler of SIGINT
that only counts. Safe points are calls of ``deliver_interrupts`` where only Python is on the stack; they
and the end of the compilation call the user's handler.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from types import FrameType, TracebackType
from typing import Any

__all__ = ["allow_interrupts", "defer_interrupts", "deliver_interrupts"]

SECONDS_BEFORE_FORCE = 3.0
"""Age of an undelivered Ctrl-C after which a second one is delivered at once."""


class _HandlerError(BaseException):
    """Carries an ``Exception`` of the user's handler through the compiler."""

    def __init__(self, error: Exception) -> None:
        super().__init__(str(error))
        self.error = error


class _Deferral:
    """State of the main thread: the user's handler, and the signals that it has not seen."""

    __slots__ = ("count", "depth", "first_at", "is_immediate", "owner", "user_handler")

    def __init__(self) -> None:
        self.owner = 0
        """Thread that entered the outermost block."""
        self.depth = 0
        self.count = 0
        self.first_at = 0.0
        self.user_handler: Any = None
        self.is_immediate = False

    def on_signal(self) -> None:
        """Count a SIGINT; deliver it if no compiler code runs, or if it waited for too long."""
        self.count += 1
        now = time.monotonic()
        if self.count == 1:
            self.first_at = now
        if self.is_immediate or (self.count > 1 and now - self.first_at >= SECONDS_BEFORE_FORCE):
            self.deliver()

    def install(self) -> None:
        """Install the counting handler in place of the user's, if that is a Python function."""
        if callable(signal.getsignal(signal.SIGINT)):
            self.user_handler = signal.signal(signal.SIGINT, _count_signal)

    def uninstall(self) -> None:
        """Restore the user's handler, unless another one was installed meanwhile."""
        if signal.getsignal(signal.SIGINT) is _count_signal:
            signal.signal(signal.SIGINT, self.user_handler)

    def deliver(self) -> None:
        """Send each counted signal to the user's handler, which may also install another one.

        Raises:
            BaseException: what the handler raised.
        """
        while self.count:
            self.count -= 1
            self.uninstall()
            try:
                signal.raise_signal(signal.SIGINT)
            except Exception as error:
                raise _HandlerError(error) from error
            finally:
                self.install()


deferral = _Deferral()
"""State of the process."""


def _count_signal(number: int, frame: FrameType | None) -> None:
    deferral.on_signal()


def _is_main_thread() -> bool:
    return threading.current_thread() is threading.main_thread()


def deliver_interrupts() -> None:
    """Deliver a deferred Ctrl-C: a safe point, called where only Python code is on the stack.

    Raises:
        BaseException: what the user's handler raised, such as KeyboardInterrupt.
    """
    if deferral.count and _is_main_thread():
        deferral.deliver()


class defer_interrupts:  # noqa: N801 -- a context manager, used like a function
    """Context manager: defer Ctrl-C inside the block, and deliver it at the end of the block.

    Does nothing outside the main thread, and where SIGINT has no handler in Python. Blocks nest.
    """

    __slots__ = ("_is_active",)

    def __init__(self) -> None:
        self._is_active = False

    def __enter__(self) -> None:
        if not _is_main_thread():
            return
        if not deferral.depth:
            if not callable(signal.getsignal(signal.SIGINT)):
                return
            deferral.count = 0
            deferral.install()  # from here on, no signal raises
            deferral.owner, deferral.is_immediate = threading.get_ident(), False
        deferral.depth += 1
        self._is_active = True

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        if not self._is_active:
            return
        deferral.depth -= 1
        if deferral.depth:
            return
        deferral.uninstall()  # a signal that arrives on the way is still counted
        left, deferral.count, deferral.is_immediate = deferral.count, 0, False
        try:
            _raise_signals(left)
        finally:
            carried = getattr(error, "error", None)
            if kind is _HandlerError and carried is not None:
                raise carried


def _raise_signals(count: int) -> None:
    """Send SIGINT to this thread ``count`` times, also if the handler raises."""
    if count:
        try:
            signal.raise_signal(signal.SIGINT)
        finally:
            _raise_signals(count - 1)


class allow_interrupts:  # noqa: N801 -- a context manager, used like a function
    """Context manager for code of others and waits: deliver Ctrl-C at once."""

    __slots__ = ("_is_active", "_was")

    def __enter__(self) -> None:
        deliver_interrupts()
        self._is_active = bool(deferral.depth) and _is_main_thread()
        if self._is_active:
            self._was, deferral.is_immediate = deferral.is_immediate, True

    def __exit__(self, *error: object) -> None:
        if self._is_active:
            deferral.is_immediate = self._was


def _restore_after_fork() -> None:
    """Restore the user's handler in a child that another thread than the compiling one forked."""
    if deferral.depth and deferral.owner != threading.get_ident():
        deferral.depth = deferral.count = 0
        deferral.uninstall()


os.register_at_fork(after_in_child=_restore_after_fork)
