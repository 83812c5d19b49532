"""Record the launches of kernels, for sessions that ask for them.

A program has no code for this until a session asks: then each compiled program generates its Python once more, with a
report around each launch, and again without when the session ends.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from types import CodeType
from typing import Any, Protocol

import torch

from engine.interrupts.weak_tables import WeakTable
from engine.ir.introspection.describe_values import describe
from engine.ir.kernels.generated_kernel import GeneratedKernel
from engine.ir.node_values import tensors_in
from engine.records.kernels import LaunchGroup
from engine.records.session import Session
from engine.runtime.dispatch.record_calls import outermost_call, span_at
from engine.torch_private.cuda import is_stream_capturing

MAX_GROUPS = 1_000
"""Maximum number of groups of launches in one session."""

Launched = tuple[str, GeneratedKernel, dict[str, str], tuple[int, ...]]
"""One launch: its compilation, the kernel, its arguments and its grid."""


class ReportingProgram(Protocol):
    """A program that can report its launches."""

    def forget_generated_code(self) -> None:
        """Generate the program's Python again at the next call, with reports if wanted."""
        ...


@dataclass(eq=False)
class _Log:
    """Launch groups of one session, from all threads."""

    session: Session
    thread: int = field(default_factory=threading.get_ident)
    """Thread that opened the session; its stack has the user's line while others launch."""
    lock: Any = field(default_factory=threading.Lock)
    groups: dict[Any, LaunchGroup] = field(default_factory=dict)
    callers: dict[int, CodeType] = field(default_factory=dict)
    """Code that launched, by id; the ids stay unique as long as it lives."""
    left_out: int = 0

    def add(self, launched: Launched, seconds: float | None, *, is_replay: bool) -> None:
        """Count a launch in its group: kernel, arguments, grid and caller."""
        compilation, kernel, arguments, grid = launched
        call: tuple[CodeType, int] | None = outermost_call(self.thread)
        call_site = call and (id(self.callers.setdefault(id(call[0]), call[0])), call[1])
        key = (compilation, kernel.id, tuple(arguments.values()), grid, call_site, is_replay)
        with self.lock:
            group = self.groups.get(key)
            if group is None and len(self.groups) >= MAX_GROUPS:
                self.left_out += 1
                return
            if group is None:
                caller = call and span_at(*call)
                group = LaunchGroup(compilation, kernel.id, arguments, grid, caller, is_replay=is_replay)
            self.groups[key] = _with_launch(group, seconds)

    def close(self) -> None:
        """Add the groups to the frames of the session."""
        for frame in self.session.frames:
            own = [g for g in self.groups.values() if g.compilation.partition("/")[0] == frame.id]
            self.session.add_frame(replace(frame, launches=(*frame.launches, *own)))
        if self.left_out:
            self.session.add_note(
                f"Launches were recorded in {MAX_GROUPS:,} groups: {self.left_out:,} further ones are left out."
            )


def _with_launch(group: LaunchGroup, seconds: float | None) -> LaunchGroup:
    """Return the group with one more launch; seconds are None if it was not timed."""
    if seconds is None:
        return replace(group, count=group.count + 1)
    fastest = seconds if group.fastest is None else min(seconds, group.fastest)
    return replace(group, count=group.count + 1, seconds=(group.seconds or 0.0) + seconds, fastest=fastest)


_logs: list[_Log] = []
_programs: WeakTable[ReportingProgram, None] = WeakTable()


class _Capture(threading.local):
    """The launches of the CUDA graph that this thread records; None outside of a recording."""

    launches: list[Launched] | None = None


_capture = _Capture()


def add_program(program: ReportingProgram) -> None:
    """Let a program report its launches to sessions that ask for them, as long as it lives."""
    _programs[program] = None


def is_recording_launches() -> bool:
    """Return True if a session asks for launches."""
    return bool(_logs)


@contextlib.contextmanager
def record_launches(session: Session) -> Iterator[None]:
    """Record in ``session`` all launches inside the block."""
    log = _Log(session)
    _logs.append(log)
    _forget_generated_code()
    try:
        yield
    finally:
        _logs.remove(log)
        _forget_generated_code()
        log.close()


def _forget_generated_code() -> None:
    for program in tuple(_programs):
        program.forget_generated_code()


class LaunchReporter:
    """Runs the launches of one program, and reports each to the innermost session that asks."""

    def __init__(self, compilation: str) -> None:
        self._compilation = compilation

    def __call__(
        self, kernel: GeneratedKernel, grid: tuple[int, ...], values: Sequence[Any], launch: Callable[[], Any]
    ) -> Any:
        """Launch a kernel; ``values`` are its arguments without constexprs."""
        if not _logs:
            return launch()
        arguments = {a.name: describe(v) for a, v in zip(launch_arguments(kernel), values, strict=True)}
        launched = (self._compilation, kernel, arguments, grid)
        if _capture.launches is not None:
            _capture.launches.append(launched)
            return launch()
        device = next((x.device for x in tensors_in(values)), torch.device("cpu"))
        if device.type != "cuda" or is_stream_capturing():
            start = time.perf_counter()
            result = launch()
            seconds = time.perf_counter() - start if device.type != "cuda" else None
        else:
            result, seconds = _timed_by_events(launch)
        _logs[-1].add(launched, seconds, is_replay=False)
        return result


def launch_arguments(kernel: GeneratedKernel) -> list[Any]:
    """Return the parameters of a kernel that a launch gives: constexprs are part of its code."""
    return [a for a in kernel.args if a.kind != "constexpr"]


def _timed_by_events(launch: Callable[[], Any]) -> tuple[Any, float]:
    """Launch and wait; return the launcher's result, and the seconds between two events."""
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    start.record()
    result = launch()
    end.record()
    end.synchronize()
    return result, float(start.elapsed_time(end)) / 1e3


@contextlib.contextmanager
def capture_launches() -> Iterator[list[Launched]]:
    """Collect the launches that this thread records into a CUDA graph, without running them."""
    before, _capture.launches = _capture.launches, []
    try:
        yield _capture.launches
    finally:
        _capture.launches = before


def reporting_replay(replay: Callable[[], None], launches: Sequence[Launched]) -> Callable[[], None]:
    """Return a replay that reports the launches of its recording, without times."""

    def replay_and_report() -> None:
        replay()
        for launched in launches if _logs else ():
            _logs[-1].add(launched, None, is_replay=True)

    return replay_and_report
