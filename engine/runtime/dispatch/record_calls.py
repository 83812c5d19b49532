"""Recording of dispatched frames, their files and calls into the session."""

from __future__ import annotations

import itertools
import os
import sys
import threading
import time
from collections.abc import Sequence
from dataclasses import replace
from types import FrameType
from typing import Any

import torch

import engine.ir
from engine.bytecode.source_positions import span_in_characters
from engine.ir.introspection.describe_values import describe_arguments
from engine.ir.user_code_files import is_installed_file, source_file
from engine.records.bytecode import Span
from engine.records.guards import GuardFailure
from engine.records.runtime import CallRecord
from engine.records.session import Session
from engine.runtime.dispatch.code_cache import CodeCache
from engine.runtime.dispatch.codegen import DISPATCH_FILE

_ENGINE = os.path.dirname(os.path.dirname(os.path.abspath(engine.ir.__file__))) + os.sep
_TORCH = os.path.dirname(os.path.abspath(torch.__file__)) + os.sep


class _ActiveFrames(threading.local):
    """Frames that this thread runs under a recording session, outermost first."""

    def __init__(self) -> None:
        self.frames: list[str] = []


active_frames = _ActiveFrames()


def record_frame(session: Session, cache: CodeCache) -> None:
    """Add the frame and its file to the session, once."""
    if session in cache.announced_sessions:
        return
    cache.announced_sessions.add(session)
    if cache.frame.role == "callee" and not cache.frame.parent and active_frames.frames:
        cache.frame = replace(cache.frame, parent=active_frames.frames[-1])
    session.add_file(source_file(cache.frame.file))
    session.add_frame(cache.frame)


def record_call(
    session: Session,
    cache: CodeCache,
    outcome: str,
    entry: str,
    arguments: dict[str, Any],
    asked: Sequence[str] = (),
    rejections: Sequence[GuardFailure] = (),
    guard_seconds: float = 0.0,
) -> int:
    """Add one call to the session; return its index."""
    if outcome == "hit" and session.drop_hit():  # before anything is described
        return -1
    inputs = describe_arguments(arguments)
    caller = caller_span()
    if outcome == "compiled" and caller is not None and is_installed_file(cache.frame.file):
        session.add_file(source_file(caller.file))  # The only code of the user that this frame leads to.
    start = time.perf_counter() - session.started
    asked_of, refused = tuple(asked), tuple(rejections)
    return session.add_call(
        CallRecord(0, cache.frame.id, outcome, entry, caller, inputs, asked_of, refused, guard_seconds, start)
    )


def caller_span() -> Span | None:
    """Return the user's call site: the innermost frame outside the engine and torch."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        file = frame.f_code.co_filename
        if file != DISPATCH_FILE and not file.startswith((_ENGINE, _TORCH, "<frozen")):
            return _span_at(frame)
        frame = frame.f_back
    return None


def _span_at(frame: FrameType) -> Span:
    # Not memoized by code object: its constants can be unhashable objects, or objects with a user-defined ``__eq__``.
    file = frame.f_code.co_filename
    position = next(itertools.islice(frame.f_code.co_positions(), frame.f_lasti // 2, None), (None,) * 4)
    line, end_line, column, end_column = position
    if line is None or end_line is None or column is None or end_column is None:
        return Span(file, frame.f_lineno or frame.f_code.co_firstlineno)
    return span_in_characters(file, line, end_line, column, end_column)
