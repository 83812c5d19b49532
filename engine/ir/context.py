"""What is current in this thread: the session being recorded."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from contextvars import ContextVar

from engine.records.session import Session

_session: ContextVar[Session | None] = ContextVar("engine_session", default=None)


def current_session() -> Session | None:
    """The innermost session that records in this thread, or None."""
    return _session.get()


@contextlib.contextmanager
def recording(session: Session | None) -> Iterator[Session | None]:
    """Make ``session`` the one that stages' drivers add to (None: record nothing)."""
    token = _session.set(session)
    try:
        yield session
    finally:
        _session.reset(token)
