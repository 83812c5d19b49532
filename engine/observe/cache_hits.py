"""Recorder of torch.compile's cache hits, which its trace does not contain.

It uses torch's hook after guard evaluation.
"""

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

from engine.observe.dynamo_guards import explain_code
from engine.observe.source_files import is_generated_file
from engine.observe.trace_events import frame_id_of
from engine.records.bytecode import Span
from engine.records.guards import CallExplanation
from engine.records.runtime import CallRecord
from engine.records.session import Session
from engine.runtime.dispatch.recorded_arguments import record_stock_arguments
from engine.torch_private.torch_compile import debug_get_cache_entry_list, set_guard_complete_hook

_TORCH_DIR = str(pathlib.Path(torch.__file__).parent)
_CALLEE_LOCALS = {"compile_wrapper": "fn", "_call_impl": "forward_call"}
"""torch's functions that call a compiled frame, and the local variable with the callee."""
MAX_STACK_DEPTH = 40
"""Maximum number of stack frames searched for the user's line."""

GuardCompleteHook = Callable[[bool], bool]


class CacheHitRecorder:
    """Adds a call record to ``session`` for each cache hit.

    A hit's frame is known by the code that was compiled at the last miss at the same call site.
    """

    def __init__(self, session: Session) -> None:
        self._session = session
        self._previous_hook: GuardCompleteHook | None = None
        self._last_miss: tuple[CodeType, int] | None = None
        self._code_of_call_site: dict[tuple[CodeType, int], CodeType] = {}

    def __call__(self, hit: bool) -> bool:
        """Run as torch's guard-complete hook; return the result of the hook installed before."""
        with contextlib.suppress(Exception):
            self._record_hit(sys._getframe(1), hit=hit)
        return hit if self._previous_hook is None else self._previous_hook(hit)

    @contextlib.contextmanager
    def install(self) -> Iterator[None]:
        """Install the hook while the context is open; a previously installed hook is still called."""
        swap: Any = set_guard_complete_hook
        self._previous_hook = swap(self)
        try:
            yield
        finally:
            present = swap(self._previous_hook)
            if present is not self:  # another hook was installed meanwhile
                swap(present)

    def on_compile_start(self, frame_id: str) -> None:
        """Record the code compiled for the last miss, and its arguments for what-if queries."""
        for frame in _convert_frames(sys._getframe(1)):
            code, frame_locals = frame.f_locals["code"], frame.f_locals.get("locals")
            if self._last_miss is not None:
                self._code_of_call_site[self._last_miss] = code
                self._last_miss = None
            if isinstance(frame_locals, Mapping):
                self._record_inputs(frame_id, code, frame_locals)
                break
        self._last_miss = None

    def _record_inputs(self, frame_id: str, code: CodeType, frame_locals: Mapping[str, Any]) -> None:
        parameters = inspect.getargs(code)
        names = [*parameters.args, *filter(None, (parameters.varargs, parameters.varkw)), *code.co_freevars]
        arguments = {name: frame_locals[name] for name in names if name in frame_locals}
        record_stock_arguments(self._session, frame_id, partial(_explain, ref(code)), arguments)

    def _record_hit(self, caller: FrameType, *, hit: bool) -> None:
        call_site = (caller.f_code, caller.f_lasti)
        if not hit:
            self._last_miss = call_site
            return
        code = _called_code(caller) or self._code_of_call_site.get(call_site)
        entries = debug_get_cache_entry_list(code) if code is not None else []
        if not entries:
            return
        entry = str(entries[0].compile_id)  # torch moves the entry it found to the front
        self._session.add_call(CallRecord(0, frame_id_of(entry), "hit", entry, _user_line(caller), None, (entry,)))


def _convert_frames(frame: FrameType | None) -> Iterator[FrameType]:
    """Yield torch's frames up the stack that compile a code object, innermost first."""
    while frame is not None:
        if frame.f_code.co_filename.endswith("convert_frame.py") and isinstance(frame.f_locals.get("code"), CodeType):
            yield frame
        frame = frame.f_back


def _explain(code: Callable[[], CodeType | None], arguments: Mapping[str, Any]) -> CallExplanation | None:
    live_code = code()
    return explain_code(live_code, arguments) if live_code is not None else None


def _called_code(caller: FrameType) -> CodeType | None:
    """Return the code of the function that torch's wrapper calls."""
    name = _CALLEE_LOCALS.get(caller.f_code.co_name)
    if name is None or not caller.f_code.co_filename.startswith(_TORCH_DIR):
        return None
    value = caller.f_locals.get(name)
    value = getattr(value, "__func__", value)
    return value.__code__ if isinstance(value, FunctionType) else None


def _user_line(frame: FrameType | None) -> Span | None:
    for _ in range(MAX_STACK_DEPTH):
        if frame is None:
            break
        file = frame.f_code.co_filename
        if not file.startswith(_TORCH_DIR) and not is_generated_file(file):
            return Span(file, frame.f_lineno)
        frame = frame.f_back
    return None
