"""Captured backwards for people: which backend runs them, and what a session hears of them."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from engine.autograd.front import Event, Settings, capturing
from engine.autograd.run import CapturedBackward
from engine.autograd.tell import backward_record
from engine.ir.context import current_session
from engine.options import Options
from engine.pipeline import backend_name, pipeline_for

Run = Any


@contextlib.contextmanager
def captured_backwards(options: Options | None) -> Iterator[None]:
    """Capture the backwards of this thread while the context is open, and run them as ``options`` say (None: leave them to torch)."""
    with capturing(
        None
        if options is None
        else Settings(pipeline_for(options), _compile(options), dynamic=bool(options.dynamic), tell=_tell(options))
    ):
        yield


def _compile(options: Options) -> Any:
    def compile(backward: CapturedBackward) -> Run:
        return backward.eager()

    return compile


def _tell(options: Options) -> Any:
    def tell(event: Event) -> None:
        session = current_session()
        if session is None:
            return
        id = "" if event.capture is None else event.capture.id
        if event.capture is not None and id not in {b.id for b in session.backwards}:
            record = backward_record(event.capture, event.capture.before)
            session.put_backward(replace(record, backend=backend_name(options.backend)))
        session.add_backward_call(event.outcome, id, event.reason)

    return tell
