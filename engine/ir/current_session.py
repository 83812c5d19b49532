"""What is current in this thread: the session being recorded."""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Iterator
from contextvars import ContextVar

from engine.records.session import Session

_session: ContextVar[weakref.ref[Session] | None] = ContextVar("engine_session", default=None)
"""Held weakly: contexts are copied for backwards that are compiled later, and outlive the session."""


slow_dispatch_tokens: list[object] = []
"""Not empty while a session records, or a frame is compiled, anywhere in the process: dispatch then takes its careful path."""


@contextlib.contextmanager
def force_slow_dispatch() -> Iterator[None]:
    """Make dispatch take its careful path, in every thread, for as long as this lasts."""
    token = object()
    slow_dispatch_tokens.append(token)
    try:
        yield
    finally:
        slow_dispatch_tokens.remove(token)


def current_session() -> Session | None:
    """The innermost session that records in this thread, or None."""
    found = _session.get()
    return None if found is None else found()


@contextlib.contextmanager
def set_current_session(session: Session | None) -> Iterator[Session | None]:
    """Make ``session`` the one that stages' drivers add to (None: record nothing)."""
    token = _session.set(None if session is None else weakref.ref(session))
    try:
        with contextlib.nullcontext() if session is None else force_slow_dispatch():
            yield session
    finally:
        _session.reset(token)
