"""A Session: all records of one recording, as they arrive, and as a file."""

from __future__ import annotations

import json
import pathlib
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from engine.records.aot import AotRecord, CallValuesRecord
from engine.records.autograd import BackwardCall, BackwardRecord
from engine.records.base import SCHEMA_VERSION, Record, RecordError, from_jsonable
from engine.records.bytecode import SourceFile, Span
from engine.records.graph import GraphRecord
from engine.records.guards import GuardsRecord, ObservedSymbolRecord
from engine.records.kernels import KernelRecord
from engine.records.lowering import LoweringRecord
from engine.records.repro_script import repro_script
from engine.records.runtime import ArtifactRecord, CallRecord, DiskCacheRecord, SkippedRecord, StageFailure, Timing
from engine.records.text_views import TextView
from engine.records.trace import TraceRecord


@dataclass(frozen=True, slots=True)
class FrameRecord(Record):
    """One code object with a cache of its own. ``role`` is "root", "callee", "resume" or "cell"; ``id`` is its number as text."""

    id: str
    name: str
    file: str
    first_line: int
    role: str = "root"
    parent: str = ""
    """For "resume": the frame it resumes; for "callee": the frame that called it first."""
    resumes_after: Span | None = None


@dataclass(frozen=True, slots=True)
class CompilationRecord(Record):
    """One compilation of one frame: one cache entry, or one decision to leave the frame to Python.

    ``id`` is "frame/entry" ("0/1"). ``cause`` is one sentence. ``graphs`` are in the order of the way through.
    """

    id: str
    frame: str
    cause: str
    inputs: dict[str, str] | None = None
    trace: TraceRecord | None = None
    guards: GuardsRecord | None = None
    graphs: tuple[GraphRecord, ...] = ()
    aot: AotRecord | None = None
    lowering: LoweringRecord | None = None
    kernels: tuple[KernelRecord, ...] = ()
    failures: tuple[StageFailure, ...] = ()
    timings: tuple[Timing, ...] = ()
    backend: str = ""
    backward_lowering: LoweringRecord | None = None
    """How the backward graph was lowered, once a backward has run; its kernels stand among ``kernels``, their ids begin with "b"."""
    compiler: str = "engine"
    """"engine", or "torch" where stock torch.compile was observed."""
    restart_reasons: tuple[str, ...] = ()
    """Why tracing was begun anew, in order."""
    observed_symbols: tuple[ObservedSymbolRecord, ...] = ()
    disk_caches: tuple[DiskCacheRecord, ...] = ()
    artifacts: tuple[ArtifactRecord, ...] = ()
    call_values: tuple[CallValuesRecord, ...] = ()
    """What small tensors held in the layers around the graph: for its first calls where every step was recorded, or noted on request."""


@dataclass(frozen=True, slots=True)
class SessionData(Record):
    """Everything a saved session holds."""

    version: int
    compiler: str
    versions: dict[str, str]
    target: str
    device: str
    level: str
    seconds: float
    files: tuple[SourceFile, ...]
    frames: tuple[FrameRecord, ...]
    compilations: tuple[CompilationRecord, ...]
    calls: tuple[CallRecord, ...]
    calls_dropped: int
    skipped: tuple[SkippedRecord, ...]
    failures: tuple[StageFailure, ...]
    notes: tuple[str, ...]
    artifacts: tuple[ArtifactRecord, ...] = ()
    backwards: tuple[BackwardRecord, ...] = ()
    backward_calls: tuple[BackwardCall, ...] = ()


MAX_CALLS = 2_000
"""Calls kept per session; later hits are only counted, misses are always kept."""


class Session:
    """Records of one recording. Stages' drivers add to it while they work; views read it. Safe to share between threads.

    ``on_change`` callbacks get the name of what changed ("compilations", "calls", ...) and run in the thread that added it.
    """

    def __init__(
        self, *, subject: str = "engine", level: str = "standard", target: str = "", device: str = "cpu"
    ) -> None:
        self.compiler = subject
        self.level = level
        self.target = target
        self.device = device
        self.versions: dict[str, str] = {}
        self.seconds = 0.0
        self.started = time.perf_counter()
        self.calls_dropped = 0
        self.is_cancelled = False
        """Whether a person asked to stop compiling: what is not compiled yet then runs as plain Python."""
        self.stage = ""
        """The stage at work right now ("lowering 0/0"), for progress; empty when idle."""
        self._lock = threading.RLock()
        self._files: dict[str, SourceFile] = {}
        self._frames: dict[str, FrameRecord] = {}
        self._compilations: dict[str, CompilationRecord] = {}
        self._calls: list[CallRecord] = []
        self._skipped: list[SkippedRecord] = []
        self._failures: list[StageFailure] = []
        self._notes: list[str] = []
        self._artifacts: list[ArtifactRecord] = []
        self._backwards: dict[str, BackwardRecord] = {}
        self._backward_calls: list[BackwardCall] = []
        self._listeners: list[Callable[[str], None]] = []

    @property
    def files(self) -> tuple[SourceFile, ...]:
        """User source files that spans point into."""
        return tuple(self._files.values())

    @property
    def frames(self) -> tuple[FrameRecord, ...]:
        """Code objects met, in the order they were first called."""
        return tuple(self._frames.values())

    @property
    def compilations(self) -> tuple[CompilationRecord, ...]:
        """Every compilation, oldest first."""
        return tuple(self._compilations.values())

    @property
    def calls(self) -> tuple[CallRecord, ...]:
        """Calls of compiled frames in order."""
        return tuple(self._calls)

    @property
    def skipped(self) -> tuple[SkippedRecord, ...]:
        """What was not compiled, and why."""
        return tuple(self._skipped)

    @property
    def failures(self) -> tuple[StageFailure, ...]:
        """Failures of ours outside any one compilation."""
        return tuple(self._failures)

    @property
    def notes(self) -> tuple[str, ...]:
        """Sentences about the recording as a whole."""
        return tuple(self._notes)

    @property
    def artifacts(self) -> tuple[ArtifactRecord, ...]:
        """Texts that belong to no compilation."""
        return tuple(self._artifacts)

    @property
    def backwards(self) -> tuple[BackwardRecord, ...]:
        """Captured backwards, in the order in which they first ran."""
        return tuple(self._backwards.values())

    @property
    def backward_calls(self) -> tuple[BackwardCall, ...]:
        """Backwards that ran while they were to be captured."""
        return tuple(self._backward_calls)

    @property
    def bytecode(self) -> TextView:
        """The instructions of each compiled function, as written and as they run. To print, or as ``to_dict()``."""
        return TextView(self, "bytecode")

    @property
    def trace(self) -> TextView:
        """What the tracer did: what it inlined, where it broke and why, its steps where those were recorded. To print, or as ``to_dict()``."""
        return TextView(self, "trace")

    @property
    def guards(self) -> TextView:
        """What each entry takes for granted, and the calls that it refused. To print, or as ``to_dict()``."""
        return TextView(self, "guards")

    @property
    def graph(self) -> TextView:
        """Every graph as its program. To print, or as ``to_dict()``."""
        return TextView(self, "graph")

    @property
    def aot(self) -> TextView:
        """The layers around each functional graph, what is saved for the backward, and contents where they were noted. To print, or as ``to_dict()``."""
        return TextView(self, "aot")

    @property
    def autograd(self) -> TextView:
        """Captured backwards, and those that ran. To print, or as ``to_dict()``."""
        return TextView(self, "autograd")

    @property
    def lowering(self) -> TextView:
        """What was fused, what was not and why, what stays a call of ATen. To print, or as ``to_dict()``."""
        return TextView(self, "lowering")

    @property
    def kernels(self) -> TextView:
        """Triton text of each kernel, and what its targets' compilers made of it. To print, or as ``to_dict()``."""
        return TextView(self, "kernels")

    @property
    def runtime(self) -> TextView:
        """Calls, times, failures and what was not compiled. To print, or as ``to_dict()``."""
        return TextView(self, "runtime")

    def on_change(self, callback: Callable[[str], None]) -> Callable[[], None]:
        """Call ``callback`` after every addition; returns the function that ends the subscription."""
        self._listeners.append(callback)

        def stop() -> None:
            if callback in self._listeners:
                self._listeners.remove(callback)

        return stop

    def _notify(self, what: str) -> None:
        for listener in tuple(self._listeners):
            listener(what)

    def set_stage(self, stage: str) -> None:
        """Say what is being worked on now."""
        self.stage = stage
        self._notify("stage")

    def add_file(self, file: SourceFile) -> None:
        """Add a source file once; later additions under the same id are ignored."""
        with self._lock:
            if file.id in self._files:
                return
            self._files[file.id] = file
        self._notify("files")

    def add_frame(self, frame: FrameRecord) -> None:
        """Add or replace a frame."""
        with self._lock:
            self._frames[frame.id] = frame
        self._notify("frames")

    def put_compilation(self, compilation: CompilationRecord) -> None:
        """Add a compilation, or replace the one with its id."""
        with self._lock:
            self._compilations[compilation.id] = compilation
        self._notify("compilations")

    def update_compilation(self, compilation: str, change: Callable[[CompilationRecord], CompilationRecord]) -> None:
        """Replace a compilation by what ``change`` makes of it, in one step, whatever other threads do."""
        with self._lock:
            self._compilations[compilation] = change(self._compilations[compilation])
        self._notify("compilations")

    def compilation(self, id: str) -> CompilationRecord:
        """The compilation with this id.

        Raises:
            KeyError: there is none.
        """
        return self._compilations[id]

    def repro_script(self, compilation: str) -> str:
        """Python text of a bug report about one compilation: its breaks and failures, the user's definitions, the call. Nothing is executed.

        Raises:
            KeyError: there is no such compilation.
        """
        return repro_script(self, compilation)

    def add_call(self, call: CallRecord) -> int:
        """Keep a call, and return its index; hits beyond MAX_CALLS are counted in ``calls_dropped`` instead, and have none (-1)."""
        with self._lock:
            if len(self._calls) >= MAX_CALLS and call.outcome == "hit":
                self.calls_dropped += 1
                return -1
            index = len(self._calls) + self.calls_dropped
            self._calls.append(replace(call, index=index))
        self._notify("calls")
        return index

    def update_call(self, index: int, change: Callable[[CallRecord], CallRecord]) -> None:
        """Replace the call with this index by what ``change`` makes of it, in one step."""
        with self._lock:
            self._calls = [change(c) if c.index == index else c for c in self._calls]
        self._notify("calls")

    def add_skipped(self, skipped: SkippedRecord) -> None:
        """Note something that was not compiled; the same name and reason count once."""
        with self._lock:
            if skipped in self._skipped:
                return
            self._skipped.append(skipped)
        self._notify("skipped")

    def add_failure(self, failure: StageFailure) -> None:
        """Note a failure of ours."""
        with self._lock:
            self._failures.append(failure)
        self._notify("failures")

    def add_note(self, note: str) -> None:
        """Note a sentence about the whole recording, once."""
        with self._lock:
            if note in self._notes:
                return
            self._notes.append(note)
        self._notify("notes")

    def add_artifact(self, text: ArtifactRecord) -> None:
        """Keep a text that belongs to no compilation."""
        with self._lock:
            self._artifacts.append(text)
        self._notify("texts")

    def put_backward(self, backward: BackwardRecord) -> None:
        """Add a captured backward, or replace the one with its id."""
        with self._lock:
            self._backwards[backward.id] = backward
        self._notify("backwards")

    def add_backward_call(self, outcome: str, backward: str = "", reason: str = "") -> None:
        """Note that a backward ran; MAX_CALLS are kept."""
        with self._lock:
            if len(self._backward_calls) >= MAX_CALLS:
                return
            self._backward_calls.append(BackwardCall(len(self._backward_calls), outcome, backward, reason))
        self._notify("backward_calls")

    def to_data(self) -> SessionData:
        """All records as one frozen value."""
        with self._lock:
            return SessionData(
                version=SCHEMA_VERSION,
                compiler=self.compiler,
                versions=dict(self.versions),
                target=self.target,
                device=self.device,
                level=self.level,
                seconds=self.seconds,
                files=self.files,
                frames=self.frames,
                compilations=self.compilations,
                calls=self.calls,
                calls_dropped=self.calls_dropped,
                skipped=self.skipped,
                failures=self.failures,
                notes=self.notes,
                artifacts=self.artifacts,
                backwards=self.backwards,
                backward_calls=self.backward_calls,
            )

    def to_dict(self) -> dict[str, Any]:
        """Everything as JSON-able values."""
        return self.to_data().to_dict()

    def save(self, path: str | pathlib.Path) -> pathlib.Path:
        """Write the session as JSON; returns the path. The file holds the user's source code."""
        path = pathlib.Path(path)
        path.write_text(json.dumps(self.to_dict(), ensure_ascii=False), encoding="utf-8")
        return path

    @classmethod
    def load(cls, path: str | pathlib.Path) -> Session:
        """Read a saved session. Nothing in the file is evaluated.

        Raises:
            RecordError: the file is not a session, is damaged, or was written by another version.
        """
        path = pathlib.Path(path)
        try:
            text = path.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise RecordError(f"{path.name} cannot be read as a session: {error}") from error
        try:
            plain = json.loads(text)
        except ValueError as error:
            raise RecordError(f"{path.name} is not a saved session, or was cut off: {error}") from error
        if not isinstance(plain, dict) or "version" not in plain:
            raise RecordError(f"{path.name} is JSON, but not a saved session.")
        if plain["version"] != SCHEMA_VERSION:
            raise RecordError(
                f"{path.name} was written in format {plain['version']}, this version reads format {SCHEMA_VERSION}: open it with the version that wrote it."
            )
        return cls.from_data(from_jsonable(SessionData, plain, path.name))

    @classmethod
    def from_data(cls, data: SessionData) -> Session:
        """A session that holds these records."""
        session = cls(subject=data.compiler, level=data.level, target=data.target, device=data.device)
        session.versions = dict(data.versions)
        session.seconds = data.seconds
        session.calls_dropped = data.calls_dropped
        session._files = {f.id: f for f in data.files}
        session._frames = {f.id: f for f in data.frames}
        session._compilations = {c.id: c for c in data.compilations}
        session._calls = list(data.calls)
        session._skipped = list(data.skipped)
        session._failures = list(data.failures)
        session._notes = list(data.notes)
        session._artifacts = list(data.artifacts)
        session._backwards = {b.id: b for b in data.backwards}
        session._backward_calls = list(data.backward_calls)
        return session
