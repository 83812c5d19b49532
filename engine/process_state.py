"""Process-wide locks and settings, which are renewed in forked children.

A child of ``os.fork`` has one thread. Locks that other threads held stay locked in it, and settings that they changed
stay changed; both are renewed here. A module that another thread was importing would stay locked and half executed, so
a fork waits for imports of other threads.

``os`` calls the functions that run before a fork last registered first. Modules of Python whose functions take a lock
are imported here, to be registered earlier: or a fork would hold their lock while it waits for an import that needs it.
"""

from __future__ import annotations

import _imp
import concurrent.futures.thread
import functools
import gc
import importlib
import logging
import os
import sys
import threading
import time
from collections.abc import Callable
from typing import Any, ClassVar

from engine.interrupts.weak_tables import WeakTable

__all__ = ["FAKE_TENSOR_LOGGER", "SharedSetting", "higher_recursion_limit", "make_lock", "make_rlock", "silence_logger"]

RECURSION_LIMIT = 20_000
"""Recursion limit while a frame is traced; inlined calls nest deeply."""

FAKE_TENSOR_LOGGER = "torch._subclasses.fake_tensor"
"""Logger that reports errors of users with torch's traceback, before Python does."""

MAX_IDLE_SECONDS = 30.0
"""Maximum time that a fork waits for a thread without progress: it may wait for the fork.

Later forks do not wait for that thread.
"""
SECONDS_BETWEEN_LOOKS = 0.005

_REGISTERED_EARLIER = (concurrent.futures.thread, logging)

_locks: WeakTable[Any, None] = WeakTable()
_settings: WeakTable[SharedSetting, None] = WeakTable()


def make_lock() -> threading.Lock:
    """Return a lock that is free in a forked child. A thread that holds it must not fork."""
    lock = threading.Lock()
    _locks[lock] = None
    return lock


def make_rlock() -> threading.RLock:
    """Return a reentrant lock that a forked child gets free unless its own thread holds it."""
    lock = threading.RLock()
    _locks[lock] = None
    return lock


class SharedSetting:
    """Context manager: change a process-wide setting while any thread is inside.

    The old value is restored when the last thread leaves, unless someone else has changed the setting. A thread that
    enters after such a change makes its own change to the new value.
    """

    def __init__(self, read: Callable[[], Any], write: Callable[[Any], object], change: Callable[[Any], Any]) -> None:
        self._read, self._write, self._change = read, write, change
        self._lock = make_lock()
        self._owners: list[int] = []
        self._saved: Any = None
        _settings[self] = None

    def __enter__(self) -> None:
        with self._lock:
            if not self._is_changed():
                self._saved = self._read()
                self._write(self._change(self._saved))
            self._owners.append(threading.get_ident())

    def __exit__(self, *error: object) -> None:
        with self._lock:
            self._owners.remove(threading.get_ident())
            if not self._owners:
                self._restore()

    def outside(self) -> Any:
        """Return the value outside of this context, also while a thread is inside."""
        with self._lock:
            return self._saved if self._is_changed() else self._read()

    def after_fork(self) -> None:
        """Restore the setting in a child if only threads of the parent are inside."""
        if self._owners:
            self._owners = [owner for owner in self._owners if owner == threading.get_ident()]
            if not self._owners:
                self._restore()

    def _is_changed(self) -> bool:
        """Return True if a thread is inside and no one else has changed the setting since."""
        return bool(self._owners) and self._read() == self._change(self._saved)

    def _restore(self) -> None:
        if self._read() == self._change(self._saved):
            self._write(self._saved)


higher_recursion_limit = SharedSetting(
    sys.getrecursionlimit, sys.setrecursionlimit, lambda limit: max(limit, RECURSION_LIMIT)
)


@functools.cache
def silence_logger(name: str) -> SharedSetting:
    """Return the context manager that disables a logger."""
    logger = logging.getLogger(name)
    return SharedSetting(lambda: logger.disabled, lambda value: setattr(logger, "disabled", value), lambda value: True)


def _renew_after_fork() -> None:
    """Free the locks and restore the settings of threads that the child does not have."""
    was_busy = False
    for lock in tuple(_locks):
        if getattr(lock, "_is_owned", bool)():
            continue
        if lock.acquire(blocking=False):
            lock.release()
        else:
            was_busy = True
            lock._at_fork_reinit()
    for setting in tuple(_settings):
        setting.after_fork()
    if was_busy:
        _renew_cached_properties()


def _renew_cached_properties() -> None:
    """Free the locks of ``functools.cached_property``, which hold one until Python 3.12.

    The compiling thread may have been in such a property of torch. Servers freeze their objects before they fork,
    and the search passes over frozen ones.
    """
    if sys.version_info >= (3, 12):
        return
    if gc.get_freeze_count():
        gc.unfreeze()
    for referrer in gc.get_referrers(functools.cached_property):
        if hasattr(referrer, "attrname"):  # an instance, not a module's dict
            referrer.lock = threading.RLock()


class _ImportPause(threading.local):
    """Holds the lock of the import system, without which no thread begins to import a module."""

    is_active = False
    standing: ClassVar[set[int]] = set()
    """Threads that made no progress in an import, for example of a module that runs a program."""

    def begin(self) -> None:
        """Take the lock once no other thread imports."""
        self._acquire()
        self.standing.intersection_update(_importing_threads())
        seen: dict[int, tuple[int, int]] = {}
        end = 0.0
        while importing := {n: code for n, code in _importing_threads().items() if n not in self.standing}:
            if importing != seen:
                seen, end = importing, time.monotonic() + MAX_IDLE_SECONDS
            elif time.monotonic() > end:
                self.standing.update(importing)
                return
            self.end()
            time.sleep(SECONDS_BETWEEN_LOOKS)
            self._acquire()

    def _acquire(self) -> None:
        _imp.acquire_lock()
        self.is_active = True

    def end(self) -> None:
        """Release the lock, in the parent and in the child."""
        if self.is_active:
            self.is_active = False
            _imp.release_lock()


def _importing_threads() -> dict[int, tuple[int, int]]:
    """Return the other threads that import a module, and the instruction each is at."""
    locks: dict[str, Any] = getattr(importlib._bootstrap, "_module_locks", {})
    owners = {getattr(reference(), "owner", None) for reference in tuple(locks.values())} - {threading.get_ident()}
    return {n: (id(frame), frame.f_lasti) for n, frame in sys._current_frames().items() if n in owners}


_pause = _ImportPause()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_pause.begin, after_in_parent=_pause.end, after_in_child=_pause.end)
    os.register_at_fork(after_in_child=_renew_after_fork)
