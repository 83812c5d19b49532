"""Session: all records of one recording, live while it runs, and saved as a file."""

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
    """One code object with a code cache: ``role`` is "root", "callee", "resume" or "cell".

    ``id`` is its number as text.
    """

    id: str
    name: str
    file: str
    first_line: int
    role: str = "root"
    parent: str = ""
    """For "resume": the frame that broke; for "callee": the frame that called it first."""
    resumes_after: Span | None = None


@dataclass(frozen=True, slots=True)
class CompilationRecord(Record):
    """One compilation of one frame: a new cache entry, or a fallback to Python.

    ``id`` is "frame/entry" ("0/1"). ``cause`` is the miss reason. ``graphs`` are in the order of the stages.
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
    """Lowering of the backward graph, once a backward has run.

    Its kernels are in ``kernels``, with ids that start with "b".
    """
    compiler: str = "engine"
    """"engine", or "torch" for an observed torch.compile."""
    restart_reasons: tuple[str, ...] = ()
    """Reasons of tracing restarts, in order."""
    observed_symbols: tuple[ObservedSymbolRecord, ...] = ()
    disk_caches: tuple[DiskCacheRecord, ...] = ()
    artifacts: tuple[ArtifactRecord, ...] = ()
    call_values: tuple[CallValuesRecord, ...] = ()
    """Values of small tensors at AOT wrapper boundaries.

    Recorded for the first calls at level "steps", or on request.
    """


@dataclass(frozen=True, slots=True)
class SessionData(Record):
    """All data of a saved session."""

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
"""Maximum number of stored calls per session.

Further hits are only counted; misses are always stored.
"""


class Session:
    """Records of one recording, shared between threads: stages add to it, views read it.

    ``on_change`` callbacks receive the name of what changed ("compilations", "calls", ...). They run in the
    thread that changed it.
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
        """True if the user cancelled compilation: frames not compiled yet run as Python."""
        self.stage = ""
        """Current stage ("lowering 0/0"), for progress; empty when idle."""
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
        """User source files that spans refer to."""
        return tuple(self._files.values())

    @property
    def frames(self) -> tuple[FrameRecord, ...]:
        """Frames in the order of their first calls."""
        return tuple(self._frames.values())

    @property
    def compilations(self) -> tuple[CompilationRecord, ...]:
        """All compilations, oldest first."""
        return tuple(self._compilations.values())

    @property
    def calls(self) -> tuple[CallRecord, ...]:
        """Calls of compiled frames, in order."""
        return tuple(self._calls)

    @property
    def skipped(self) -> tuple[SkippedRecord, ...]:
        """Frames that were not compiled, with reasons."""
        return tuple(self._skipped)

    @property
    def failures(self) -> tuple[StageFailure, ...]:
        """Internal errors outside a compilation."""
        return tuple(self._failures)

    @property
    def notes(self) -> tuple[str, ...]:
        """Messages about the recording as a whole."""
        return tuple(self._notes)

    @property
    def artifacts(self) -> tuple[ArtifactRecord, ...]:
        """Artifacts that belong to no compilation."""
        return tuple(self._artifacts)

    @property
    def backwards(self) -> tuple[BackwardRecord, ...]:
        """Captured backwards, in the order of their first run."""
        return tuple(self._backwards.values())

    @property
    def backward_calls(self) -> tuple[BackwardCall, ...]:
        """Runs of backwards while capturing was on."""
        return tuple(self._backward_calls)

    @property
    def bytecode(self) -> TextView:
        """Instructions of each function, original and modified; as text, or as ``to_dict()``."""
        return TextView(self, "bytecode")

    @property
    def trace(self) -> TextView:
        """Tracing: inlined calls, graph breaks, recorded steps; as text, or as ``to_dict()``."""
        return TextView(self, "trace")

    @property
    def guards(self) -> TextView:
        """Guards of each entry, and their failures; as text, or as ``to_dict()``."""
        return TextView(self, "guards")

    @property
    def graph(self) -> TextView:
        """All graphs as Python; as text, or as ``to_dict()``."""
        return TextView(self, "graph")

    @property
    def aot(self) -> TextView:
        """AOT wrappers, saved values, recorded contents; as text, or as ``to_dict()``."""
        return TextView(self, "aot")

    @property
    def autograd(self) -> TextView:
        """Captured backwards and their runs; as text, or as ``to_dict()``."""
        return TextView(self, "autograd")

    @property
    def lowering(self) -> TextView:
        """Fusion decisions with reasons, and ATen calls; as text, or as ``to_dict()``."""
        return TextView(self, "lowering")

    @property
    def kernels(self) -> TextView:
        """Triton text of each kernel, with listings per target; as text, or as ``to_dict()``."""
        return TextView(self, "kernels")

    @property
    def runtime(self) -> TextView:
        """Calls, timings, failures and skipped frames; as text, or as ``to_dict()``."""
        return TextView(self, "runtime")

    def on_change(self, callback: Callable[[str], None]) -> Callable[[], None]:
        """Call ``callback`` after each change; return the function that unsubscribes it."""
        self._listeners.append(callback)

        def stop() -> None:
            if callback in self._listeners:
                self._listeners.remove(callback)

        return stop

    def _notify(self, what: str) -> None:
        for listener in tuple(self._listeners):
            listener(what)

    def set_stage(self, stage: str) -> None:
        """Set the current stage."""
        self.stage = stage
        self._notify("stage")

    def add_file(self, file: SourceFile) -> None:
        """Add a source file; a file with a known id is ignored."""
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
        """Replace a compilation by ``change`` of it, atomically."""
        with self._lock:
            self._compilations[compilation] = change(self._compilations[compilation])
        self._notify("compilations")

    def compilation(self, id: str) -> CompilationRecord:
        """Return the compilation with this id.

        Raises:
            KeyError: there is none.
        """
        return self._compilations[id]

    def repro_script(self, compilation: str) -> str:
        """Return the repro script of one compilation: failures, definitions, call; runs nothing.

        Raises:
            KeyError: there is no such compilation.
        """
        return repro_script(self, compilation)

    def add_call(self, call: CallRecord) -> int:
        """Add a call and return its index.

        Hits beyond MAX_CALLS are only counted in ``calls_dropped``, and have index -1.
        """
        with self._lock:
            if len(self._calls) >= MAX_CALLS and call.outcome == "hit":
                self.calls_dropped += 1
                return -1
            index = len(self._calls) + self.calls_dropped
            self._calls.append(replace(call, index=index))
        self._notify("calls")
        return index

    def update_call(self, index: int, change: Callable[[CallRecord], CallRecord]) -> None:
        """Replace a call by ``change`` of it, atomically."""
        with self._lock:
            self._calls = [change(c) if c.index == index else c for c in self._calls]
        self._notify("calls")

    def add_skipped(self, skipped: SkippedRecord) -> None:
        """Add a record of something that was not compiled, once per name and reason."""
        with self._lock:
            if skipped in self._skipped:
                return
            self._skipped.append(skipped)
        self._notify("skipped")

    def add_failure(self, failure: StageFailure) -> None:
        """Add an internal error."""
        with self._lock:
            self._failures.append(failure)
        self._notify("failures")

    def add_note(self, note: str) -> None:
        """Add a message about the whole recording, once."""
        with self._lock:
            if note in self._notes:
                return
            self._notes.append(note)
        self._notify("notes")

    def add_artifact(self, text: ArtifactRecord) -> None:
        """Add an artifact that belongs to no compilation."""
        with self._lock:
            self._artifacts.append(text)
        self._notify("texts")

    def put_backward(self, backward: BackwardRecord) -> None:
        """Add a captured backward, or replace the one with its id."""
        with self._lock:
            self._backwards[backward.id] = backward
        self._notify("backwards")

    def add_backward_call(self, outcome: str, backward: str = "", reason: str = "") -> None:
        """Add a run of a backward; at most MAX_CALLS are stored."""
        with self._lock:
            if len(self._backward_calls) >= MAX_CALLS:
                return
            self._backward_calls.append(BackwardCall(len(self._backward_calls), outcome, backward, reason))
        self._notify("backward_calls")

    def to_data(self) -> SessionData:
        """Return all records as one frozen value."""
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
        """Return all records as JSON-serializable values."""
        return self.to_data().to_dict()

    def save(self, path: str | pathlib.Path) -> pathlib.Path:
        """Write the session as JSON and return the path; the file contains the user's source code."""
        path = pathlib.Path(path)
        path.write_text(json.dumps(self.to_dict(), ensure_ascii=False), encoding="utf-8")
        return path

    @classmethod
    def load(cls, path: str | pathlib.Path) -> Session:
        """Load a saved session of this or the previous schema version; nothing in it is evaluated.

        Raises:
            RecordError: the file is not a session, is damaged, or has an unknown schema version.
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
        if plain["version"] == 1:
            from engine.records.migrate import migrate_session  # it needs the records of this module

            plain = migrate_session(plain)
        if plain["version"] != SCHEMA_VERSION:
            raise RecordError(
                f"{path.name} was written in format {plain['version']}, this version reads format {SCHEMA_VERSION}: open it with the version that wrote it."
            )
        return cls.from_data(from_jsonable(SessionData, plain, path.name))

    @classmethod
    def from_data(cls, data: SessionData) -> Session:
        """Return a session with these records."""
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
