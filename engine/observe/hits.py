"""Calls that stock torch.compile served from its cache, which its trace leaves out: told by torch's own hook after guards were checked."""

from __future__ import annotations

import contextlib
import inspect
import pathlib
import sys
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from types import CodeType, FrameType, FunctionType
from typing import Any
from weakref import ref

import torch
from torch._C._dynamo import eval_frame

from engine.observe.events import frame_of
from engine.observe.guards_live import explain_code
from engine.records.bytecode import Span
from engine.records.guards import CallExplanation
from engine.records.runtime import CallRecord
from engine.records.session import Session
from engine.runtime.observed import observe_foreign

_LIBRARY = str(pathlib.Path(torch.__file__).parent)
_CALLEES = {"compile_wrapper": "fn", "_call_impl": "forward_call"}
"""Functions of torch's through which a compiled frame is called, and the local that holds what they call."""
DEEPEST = 40
"""Frames that are looked through for the user's line."""

Hook = Callable[[bool], bool]


class Hits:
    """Adds a call for each hit to ``session``. Frames are known by the code that was compiled when the same place missed before."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._before: Hook | None = None
        self._missed: tuple[CodeType, int] | None = None
        self._codes: dict[tuple[CodeType, int], CodeType] = {}

    def __call__(self, hit: bool) -> bool:
        """torch's hook: answers what would have been answered without it."""
        with contextlib.suppress(Exception):
            self._note(sys._getframe(1), hit=hit)
        return hit if self._before is None else self._before(hit)

    @contextlib.contextmanager
    def watching(self) -> Iterator[None]:
        """While the context is open, hits are told; a hook that was there before goes on being asked."""
        swap: Any = getattr(eval_frame, "set_guard_complete_hook", None)
        if swap is None:  # before torch 2.8
            yield
            return
        self._before = swap(self)
        try:
            yield
        finally:
            present = swap(self._before)
            if present is not self:  # someone set another in the meantime
                swap(present)

    def compiling(self, frame_id: str) -> None:
        """A compilation begins: remember which code it is that the last miss led to, and what it was called with, to be asked "what if" later."""
        for frame in _frames_of_torch(sys._getframe(1)):
            code, found = frame.f_locals["code"], frame.f_locals.get("locals")
            if self._missed is not None:
                self._codes[self._missed] = code
                self._missed = None
            if isinstance(found, Mapping):
                self._remember(frame_id, code, found)
                break
        self._missed = None

    def _remember(self, frame_id: str, code: CodeType, found: Mapping[str, Any]) -> None:
        given = inspect.getargs(code)
        names = [*given.args, *filter(None, (given.varargs, given.varkw)), *code.co_freevars]
        told = {name: found[name] for name in names if name in found}
        observe_foreign(self._session, frame_id, partial(_ask, ref(code)), told)

    def _note(self, caller: FrameType, *, hit: bool) -> None:
        place = (caller.f_code, caller.f_lasti)
        if not hit:
            self._missed = place
            return
        code = _called(caller) or self._codes.get(place)
        entries = eval_frame._debug_get_cache_entry_list(code) if code is not None else []
        if not entries:
            return
        entry = str(entries[0].compile_id)  # torch puts the one that it found in front
        self._session.add_call(CallRecord(0, frame_of(entry), "hit", entry, _user_line(caller), None, (entry,)))


def _frames_of_torch(frame: FrameType | None) -> Iterator[FrameType]:
    """torch's own functions further up the stack that compile some code, the innermost first."""
    while frame is not None:
        if frame.f_code.co_filename.endswith("convert_frame.py") and isinstance(frame.f_locals.get("code"), CodeType):
            yield frame
        frame = frame.f_back


def _ask(code: Callable[[], CodeType | None], arguments: Mapping[str, Any]) -> CallExplanation | None:
    found = code()
    return explain_code(found, arguments) if found is not None else None


def _called(caller: FrameType) -> CodeType | None:
    """The code behind what torch's own wrappers call."""
    name = _CALLEES.get(caller.f_code.co_name)
    if name is None or not caller.f_code.co_filename.startswith(_LIBRARY):
        return None
    value = caller.f_locals.get(name)
    value = getattr(value, "__func__", value)
    return value.__code__ if isinstance(value, FunctionType) else None


def _user_line(frame: FrameType | None) -> Span | None:
    for _ in range(DEEPEST):
        if frame is None:
            break
        if not frame.f_code.co_filename.startswith((_LIBRARY, "<")):
            return Span(frame.f_code.co_filename, frame.f_lineno)
        frame = frame.f_back
    return None
