"""The session that records in this context."""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Iterator
from contextvars import ContextVar

from engine.records.session import Session

_session: ContextVar[weakref.ref[Session] | None] = ContextVar("engine_session", default=None)
"""Weak reference: contexts are copied for later backward compiles and outlive the session."""


slow_dispatch_tokens: list[object] = []
"""Non-empty while a session records or a frame is compiled, anywhere in the process.

Dispatch then takes its slow path.
"""


@contextlib.contextmanager
def force_slow_dispatch() -> Iterator[None]:
    """Force dispatch to take its slow path, in every thread, inside the block."""
    token = object()
    slow_dispatch_tokens.append(token)
    try:
        yield
    finally:
        slow_dispatch_tokens.remove(token)


def current_session() -> Session | None:
    """Return the innermost session that records in this thread, or None."""
    found = _session.get()
    return None if found is None else found()


@contextlib.contextmanager
def set_current_session(session: Session | None) -> Iterator[Session | None]:
    """Make ``session`` the current session inside the block; None records nothing."""
    token = _session.set(None if session is None else weakref.ref(session))
    try:
        with contextlib.nullcontext() if session is None else force_slow_dispatch():
            yield session
    finally:
        _session.reset(token)
