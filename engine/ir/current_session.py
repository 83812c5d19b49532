"""The session that records in this context."""

from __future__ import annotations

import contextlib
import os
import threading
import weakref
from collections.abc import Iterator
from contextvars import ContextVar

from engine.records.session import Session

_session: ContextVar[weakref.ref[Session] | None] = ContextVar("engine_session", default=None)
"""Weak reference: contexts are copied for later backward compiles and outlive the session."""

_open_sessions: list[tuple[int, weakref.ref[Session]]] = []
"""Sessions that record now, each with its thread."""

slow_dispatch_tokens: list[int] = []
"""Threads that record a session or compile a frame, once for each.

Dispatch takes its slow path if there are any.
"""


def _forget_other_threads() -> None:
    """Forget the threads that a forked child does not have."""
    slow_dispatch_tokens[:] = [t for t in slow_dispatch_tokens if t == threading.get_ident()]
    _open_sessions[:] = [(t, s) for t, s in _open_sessions if t == threading.get_ident()]


os.register_at_fork(after_in_child=_forget_other_threads)


@contextlib.contextmanager
def force_slow_dispatch() -> Iterator[None]:
    """Force dispatch to take its slow path, in every thread, inside the block."""
    token = threading.get_ident()
    slow_dispatch_tokens.append(token)
    try:
        yield
    finally:
        slow_dispatch_tokens.remove(token)


def current_session() -> Session | None:
    """Return the innermost session that records in this thread, or None."""
    session = _session.get()
    return None if session is None else session()


@contextlib.contextmanager
def set_current_session(session: Session | None) -> Iterator[Session | None]:
    """Make ``session`` the current session inside the block; None records nothing."""
    token = _session.set(None if session is None else weakref.ref(session))
    opened = None if session is None else (threading.get_ident(), weakref.ref(session))
    if opened is not None:
        _open_sessions.append(opened)
    try:
        with contextlib.nullcontext() if session is None else force_slow_dispatch():
            yield session
    finally:
        _session.reset(token)
        if opened in _open_sessions:
            _open_sessions.remove(opened)


def note_unrecorded_thread(name: str) -> None:
    """Note in the open sessions that this thread, which none of them records, compiles."""
    thread = threading.get_ident()
    if not _open_sessions or any(t == thread for t, _ in _open_sessions):
        return
    text = f"Another thread compiled {name}, which is not in this session: a session records its own thread. Open engine.record() inside that thread."
    for _, opened in tuple(_open_sessions):
        if (session := opened()) is not None:
            session.add_note(text)
