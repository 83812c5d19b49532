"""Recording of dispatched frames, their files and calls into the session."""

from __future__ import annotations

import itertools
import os
import sys
import threading
import time
import weakref
from collections.abc import Sequence
from dataclasses import replace
from types import CodeType, FrameType
from typing import Any, NamedTuple

import torch

import engine.ir
from engine.bytecode.source_positions import span_in_characters
from engine.ir.introspection.describe_values import describe_arguments, describe_snapshots, snapshot
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
    cache.announced_sessions[session] = None
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
    checked: Sequence[str] = (),
    rejections: Sequence[GuardFailure] = (),
    guard_seconds: float = 0.0,
) -> int:
    """Add one call to the session; return its index."""
    inputs = describe_arguments(arguments)
    caller = caller_span()
    if outcome == "compiled" and caller is not None and is_installed_file(cache.frame.file):
        session.add_file(source_file(caller.file))  # The only code of the user that this frame leads to.
    start = time.perf_counter() - session.started
    checked_entries, refused = tuple(checked), tuple(_blame_caller(r, caller) for r in rejections)
    return session.add_call(
        CallRecord(0, cache.frame.id, outcome, entry, caller, inputs, checked_entries, refused, guard_seconds, start)
    )


def _blame_caller(failure: GuardFailure, caller: Span | None) -> GuardFailure:
    """Return the failure at the user's call if only lines of installed files read the value."""
    read = failure.span
    is_installed = read is not None and caller is not None and is_installed_file(read.file)
    return replace(failure, span=caller, library_span=read) if is_installed else failure


class HitDescription(NamedTuple):
    """Facts that all hits of one entry by one dispatcher share."""

    session: weakref.ref[Session]
    dispatcher: weakref.ref[Any]
    frame: str
    entry: str
    names: tuple[str, ...]


class RecordedHit:
    """A hit as stored during the call; its texts and position are made when it is read."""

    __slots__ = ("arguments", "caller", "facts", "index", "shared")

    def __init__(self, shared: HitDescription, values: tuple[Any, ...], facts: tuple[list[str], float, float]) -> None:
        self.index = 0
        self.shared = shared
        self.facts = facts
        self.arguments = [snapshot(v) for v in values]
        self.caller = _caller()

    def to_record(self) -> CallRecord:
        """Return the record of the call."""
        checked, seconds, start = self.facts
        inputs = describe_snapshots(self.shared.names, self.arguments)
        caller = self.caller and span_at(*self.caller)
        return CallRecord(
            self.index, self.shared.frame, "hit", self.shared.entry, caller, inputs, tuple(checked), (), seconds, start
        )


def caller_span() -> Span | None:
    """Return the user's call site: the innermost frame outside the engine and torch."""
    caller = _caller()
    return caller and span_at(*caller)


def _caller() -> tuple[CodeType, int] | None:
    """Return the code and the offset of the user's call site."""
    frame: FrameType | None = sys._getframe(3)
    while frame is not None:
        code = frame.f_code
        file = code.co_filename
        if file not in _internal_files:
            if file != DISPATCH_FILE and not file.startswith((_ENGINE, _TORCH, "<frozen")):
                return code, frame.f_lasti
            _internal_files.add(file)
        frame = frame.f_back
    return None


_internal_files: set[str] = set()
"""Files of the engine and of torch that were met."""


def outermost_call(thread: int) -> tuple[CodeType, int] | None:
    """Return the code and the offset of the user's call that led here.

    It is the caller of the outermost compiled frame.

    In a thread without Python frames of the user (autograd's, for a GPU) it is that of ``thread``.
    """
    call = _outermost_call(sys._getframe(1))
    return call or _outermost_call(sys._current_frames().get(thread))


def _outermost_call(frame: FrameType | None) -> tuple[CodeType, int] | None:
    outermost: tuple[CodeType, int] | None = None
    while frame is not None:
        code = frame.f_code
        if code.co_filename == DISPATCH_FILE:
            outermost = None  # the code found so far runs inside a compiled frame
        elif outermost is None and not code.co_filename.startswith((_ENGINE, _TORCH, "<frozen", "<engine")):
            outermost = code, frame.f_lasti
        frame = frame.f_back
    return outermost


def span_at(code: CodeType, offset: int) -> Span:
    """Return the span of the instruction at an offset of a code object."""
    # Not memoized by code object: its constants can be unhashable objects, or objects with a user-defined ``__eq__``.
    file = code.co_filename
    position = next(itertools.islice(code.co_positions(), offset // 2, None), (None,) * 4)
    line, end_line, column, end_column = position
    if line is None or end_line is None or column is None or end_column is None:
        return Span(file, line or code.co_firstlineno)
    return span_in_characters(file, line, end_line, column, end_column)
