"""What dispatch tells a session: frames and their files, calls with their caller, what was not compiled."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Sequence
from dataclasses import replace
from types import FrameType
from typing import Any

import torch

import engine.ir
from engine.bytecode.spans import span_of
from engine.ir.exact import describe
from engine.ir.files import source_file
from engine.records.bytecode import Span
from engine.records.guards import Rejection
from engine.records.runtime import CallRecord
from engine.records.session import Session
from engine.runtime.cache import CodeCache
from engine.runtime.signature import FILE

_ENGINE = os.path.dirname(os.path.dirname(os.path.abspath(engine.ir.__file__))) + os.sep
_TORCH = os.path.dirname(os.path.abspath(torch.__file__)) + os.sep


class _Running(threading.local):
    """Frames being run under a recording in this thread, outermost first."""

    def __init__(self) -> None:
        self.frames: list[str] = []


running = _Running()


def announce(session: Session, cache: CodeCache) -> None:
    """Add the frame and its file to the session, once."""
    if session in cache.told:
        return
    cache.told.add(session)
    if cache.frame.role == "callee" and not cache.frame.parent and running.frames:
        cache.frame = replace(cache.frame, parent=running.frames[-1])
    session.add_file(source_file(cache.frame.file))
    session.add_frame(cache.frame)


def tell_call(
    session: Session,
    cache: CodeCache,
    outcome: str,
    entry: str,
    arguments: dict[str, Any],
    asked: Sequence[str] = (),
    rejections: Sequence[Rejection] = (),
) -> None:
    """Add one call."""
    inputs = {name: describe(value) for name, value in arguments.items()}
    session.add_call(
        CallRecord(0, cache.frame.id, outcome, entry, caller_span(), inputs, tuple(asked), tuple(rejections))
    )


def caller_span() -> Span | None:
    """The user's line that made the call: the innermost frame that is neither ours nor torch's."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        file = frame.f_code.co_filename
        if file != FILE and not file.startswith((_ENGINE, _TORCH, "<frozen")):
            return span_of(frame.f_code, frame.f_lasti)
        frame = frame.f_back
    return None
