"""Session: all records of one recording, live while it runs, and saved as a file."""

from __future__ import annotations

import functools
import importlib
import json
import operator
import os
import pathlib
import time
from collections import deque
from collections.abc import Callable
from dataclasses import replace
from typing import Any, Generic, Protocol, TypeVar

from engine.process_state import make_rlock
from engine.records.autograd import BackwardCall, BackwardRecord
from engine.records.base import SCHEMA_VERSION, RecordError, from_jsonable
from engine.records.bytecode import SourceFile
from engine.records.kernels import LaunchGroup
from engine.records.migrate import migrate_session
from engine.records.ranks.groups import RankGroups
from engine.records.runtime import ArtifactRecord, CallRecord, SkippedRecord, StageFailure
from engine.records.scripts.repro_script import repro_script
from engine.records.session_data import CompilationRecord, FrameRecord, SessionData
from engine.records.text_views import TextView
from engine.replace_file import replace_file
from engine.supported_versions import torch_version

__all__ = ["MAX_CALLS", "CompilationRecord", "FrameRecord", "Session", "SessionData"]

MAX_CALLS = 2_000
"""Maximum number of stored calls per session.

Further hits are only counted; misses are always stored.
"""
MAX_COMPILATIONS = 2_000
"""Maximum number of compilations with details; older ones have an id, a frame and a cause."""
RECORD_KEYS: dict[str, Callable[[Any], Any] | None] = {
    **dict.fromkeys(("files", "frames", "compilations", "backwards"), operator.attrgetter("id")),
    **dict.fromkeys(("skipped", "notes"), lambda record: record),
    **dict.fromkeys(("calls", "failures", "artifacts", "backward_calls")),
}
"""Kinds of records, each with the key of a record in its table; None: its position."""
T = TypeVar("T")


class RecordTable(Generic[T]):
    """Attribute of a session: its records of one kind as a tuple, oldest first."""

    def __init__(self, doc: str) -> None:
        self.__doc__ = doc

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    def __get__(self, session: Session, owner: type) -> tuple[T, ...]:
        return self if session is None else tuple(session._records[self._name].values())


class PendingCall(Protocol):
    """A call that hit, whose record is made when it is first read."""

    index: int

    def to_record(self) -> CallRecord:
        """Return the record."""
        ...


class CallTable(RecordTable[CallRecord]):
    """The calls of a session; pending ones become records."""

    def __get__(self, session: Session, owner: type) -> tuple[CallRecord, ...]:
        if session is not None:
            session._make_pending_calls()
        return super().__get__(session, owner)


class FrameLaunches:
    """Attribute of a session: the launches of all its frames."""

    def __get__(self, session: Session, owner: type) -> tuple[LaunchGroup, ...]:
        return self if session is None else tuple(group for frame in session.frames for group in frame.launches)


class StageText:
    """Attribute of a session: one stage as text to print, or as ``to_dict()``."""

    def __init__(self, doc: str) -> None:
        self.__doc__ = f"{doc}; as text, or as ``to_dict()``."

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    def __get__(self, session: Session, owner: type) -> TextView:
        return self if session is None else TextView(session, self._name)


class LazyMethod:
    """A method that needs torch: its module is imported when it is first called."""

    def __init__(self, home: str, doc: str) -> None:
        self._home = home
        self.__doc__ = doc

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    def __get__(self, session: Any, owner: type) -> Any:
        if session is None:
            return self
        return functools.partial(getattr(importlib.import_module(self._home), self._name), session)


class Session:
    """Records of one recording, shared between threads: stages add to it, views read it.

    ``on_change`` callbacks receive the name of what changed ("compilations", "calls", ...). They run in the
    thread that changed it.
    """

    files = RecordTable[SourceFile]("User source files that spans refer to.")
    frames = RecordTable[FrameRecord]("Frames in the order of their first calls.")
    compilations = RecordTable[CompilationRecord]("All compilations, oldest first.")
    calls = CallTable("Calls of compiled frames, in order.")
    skipped = RecordTable[SkippedRecord]("Frames that were not compiled, with reasons.")
    failures = RecordTable[StageFailure]("Internal errors outside a compilation.")
    notes = RecordTable[str]("Messages about the recording as a whole.")
    artifacts = RecordTable[ArtifactRecord]("Artifacts that belong to no compilation.")
    backwards = RecordTable[BackwardRecord]("Captured backwards, in the order of their first run.")
    backward_calls = RecordTable[BackwardCall]("Runs of backwards while capturing was on.")

    launches = FrameLaunches()

    bytecode = StageText("Instructions of each function, original and modified")
    trace = StageText("Tracing: inlined calls, graph breaks, recorded steps")
    guards = StageText("Guards of each entry, and their failures")
    graph = StageText("All graphs as Python")
    aot = StageText("AOT wrappers, saved values, recorded contents")
    autograd = StageText("Captured backwards and their runs")
    memory = StageText("Live memory of each program, step by step")
    lowering = StageText("Fusion decisions with reasons, and ATen calls")
    kernels = StageText("Triton text of each kernel, with listings per target")
    runtime = StageText("Calls, timings, failures and skipped frames")

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
        self.started_at = 0.0
        """Wall clock seconds of the start; 0 if unknown."""
        self.ranks: RankGroups | None = None
        """Ranks of the program, if it was loaded from the recordings of several."""
        self.calls_dropped = 0
        self.is_cancelled = False
        """True if the user cancelled compilation: frames not compiled yet run as Python."""
        self.stage = ""
        """Current stage ("lowering 0/0"), for progress; empty when idle."""
        self._lock = make_rlock()
        self._records: dict[str, dict[Any, Any]] = {kind: {} for kind in RECORD_KEYS}
        """Records by kind and key."""
        self._detailed_compilations: deque[str] = deque()
        self._pending_calls: deque[PendingCall] = deque()
        self._other_torch_note = ""
        self._listeners: list[Callable[[str], None]] = []

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
        """Set the stage that progress displays show."""
        self.stage = stage
        self._notify("stage")

    def _put_record(self, kind: str, key: Any, record: Any) -> None:
        """Add a record, or replace the one with its key."""
        with self._lock:
            self._records[kind][key] = record
        self._notify(kind)

    def _append(self, kind: str, record: Any) -> None:
        with self._lock:
            self._records[kind][len(self._records[kind])] = record
        self._notify(kind)

    def _add_once(self, kind: str, key: Any, record: Any) -> None:
        """Add a record; do nothing if there is one with its key."""
        with self._lock:
            if key in self._records[kind]:
                return
            self._records[kind][key] = record
        self._notify(kind)

    def add_file(self, file: SourceFile) -> None:
        """Add a source file; a file with a known id is ignored."""
        self._add_once("files", file.id, file)

    def add_frame(self, frame: FrameRecord) -> None:
        """Add or replace a frame."""
        self._put_record("frames", frame.id, frame)

    def put_compilation(self, compilation: CompilationRecord) -> None:
        """Add a compilation, or replace the one with its id; the oldest lose their details."""
        with self._lock:
            compilations = self._records["compilations"]
            if compilation.id not in compilations:
                self._detailed_compilations.append(compilation.id)
            compilations[compilation.id] = compilation
            if len(self._detailed_compilations) > MAX_COMPILATIONS:
                old = compilations[self._detailed_compilations.popleft()]
                compilations[old.id] = CompilationRecord(old.id, old.frame, old.cause, compiler=old.compiler)
                self._records["notes"][MAX_COMPILATIONS] = (
                    f"Only the newest {MAX_COMPILATIONS:,} compilations have details: "
                    f"{len(compilations) - MAX_COMPILATIONS:,} older ones have none."
                )
        self._notify("compilations")

    def update_compilation(self, compilation: str, change: Callable[[CompilationRecord], CompilationRecord]) -> None:
        """Replace a compilation by ``change`` of it, atomically."""
        with self._lock:
            compilations = self._records["compilations"]
            compilations[compilation] = change(compilations[compilation])
        self._notify("compilations")

    def compilation(self, id: str) -> CompilationRecord:
        """Return the compilation with this id.

        Raises:
            KeyError: there is none.
        """
        record: CompilationRecord = self._records["compilations"][id]
        return record

    save_timeline = LazyMethod(
        "engine.records.timeline",
        "Write the timeline for Perfetto, or for speedscope to a name that ends with ``.speedscope.json``.",
    )
    reproducer = LazyMethod(
        "engine.reproducers", "Return one file that shows again what was recorded; see ``engine.reproducer``."
    )

    def repro_script(self, compilation: str) -> str:
        """Return the repro script of one compilation: failures, definitions, call; runs nothing.

        Raises:
            KeyError: there is no such compilation.
        """
        return repro_script(self, compilation)

    def drop_hit(self) -> bool:
        """Count a hit without a record if MAX_CALLS calls are stored; return True if so."""
        if len(self._records["calls"]) + len(self._pending_calls) < MAX_CALLS:
            return False
        with self._lock:
            self.calls_dropped += 1
        return True

    def add_call(self, call: CallRecord) -> int:
        """Add a call and return its index.

        Hits beyond MAX_CALLS are only counted in ``calls_dropped``, and have index -1.
        """
        with self._lock:
            calls = self._make_pending_calls()
            if call.outcome == "hit" and self.drop_hit():
                return -1
            index = len(calls) + self.calls_dropped
            calls[len(calls)] = replace(call, index=index)
        self._notify("calls")
        return index

    def add_hit(self, call: PendingCall) -> int:
        """Add a call that hit, whose record is made when calls are read; return its index."""
        pending = self._pending_calls
        call.index = index = len(self._records["calls"]) + len(pending) + self.calls_dropped
        pending.append(call)
        for listener in self._listeners:
            listener("calls")
        return index

    def _make_pending_calls(self) -> dict[int, CallRecord]:
        """Make records of calls noted in brief on the fast path; return the records of all calls."""
        calls = self._records["calls"]
        with self._lock:
            while self._pending_calls:
                calls[len(calls)] = self._pending_calls[0].to_record()
                self._pending_calls.popleft()
        return calls

    def update_call(self, index: int, change: Callable[[CallRecord], CallRecord]) -> None:
        """Replace a call by ``change`` of it, atomically."""
        with self._lock:
            calls = self._make_pending_calls()
            calls.update({key: change(call) for key, call in calls.items() if call.index == index})
        self._notify("calls")

    def add_skipped(self, skipped: SkippedRecord) -> None:
        """Add a record of something that was not compiled, once per name and reason."""
        self._add_once("skipped", skipped, skipped)

    def add_failure(self, failure: StageFailure) -> None:
        """Add an internal error of a stage; the user's code still ran."""
        self._append("failures", failure)

    def add_note(self, note: str) -> None:
        """Add a message about the whole recording, once."""
        self._add_once("notes", note, note)

    def add_artifact(self, text: ArtifactRecord) -> None:
        """Add an artifact that belongs to no compilation."""
        self._append("artifacts", text)

    def put_backward(self, backward: BackwardRecord) -> None:
        """Add a captured backward, or replace the one with its id."""
        self._put_record("backwards", backward.id, backward)

    def add_backward_call(self, outcome: str, backward: str = "", reason: str = "") -> None:
        """Add a run of a backward; at most MAX_CALLS are stored."""
        with self._lock:
            number = len(self.backward_calls)
            if number >= MAX_CALLS:
                return
            self._records["backward_calls"][number] = BackwardCall(number, outcome, backward, reason)
        self._notify("backward_calls")

    def to_data(self) -> SessionData:
        """Return all records as one frozen value, without the note that only this process adds."""
        with self._lock:
            records = {kind: getattr(self, kind) for kind in RECORD_KEYS}
            records["notes"] = tuple(note for note in self.notes if note != self._other_torch_note)
            return SessionData(
                version=SCHEMA_VERSION,
                compiler=self.compiler,
                versions=dict(self.versions),
                target=self.target,
                device=self.device,
                level=self.level,
                seconds=self.seconds,
                calls_dropped=self.calls_dropped,
                started_at=self.started_at,
                ranks=self.ranks,
                **records,
            )

    def to_dict(self) -> dict[str, Any]:
        """Return all records as JSON-serializable values."""
        return self.to_data().to_dict()

    def save(self, path: str | pathlib.Path) -> pathlib.Path:
        """Write the session as JSON and return the path; the file contains the user's source code.

        In a folder the file is named after the rank of this process, for ``engine.load_ranks``.
        """
        path = pathlib.Path(path)
        if path.is_dir():
            path = path / f"session_rank_{os.environ.get('RANK', '0')}.json"
        text = json.dumps(self.to_dict(), ensure_ascii=False)
        with replace_file(path) as stream:
            stream.write(text.encode(errors="replace"))  # UTF-8 cannot encode lone surrogates
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
        except RecursionError as error:
            raise RecordError(f"{path.name} is nested too deeply to be a saved session.") from error
        except ValueError as error:
            raise RecordError(f"{path.name} is not a saved session, or was cut off: {error}") from error
        if not isinstance(plain, dict) or "version" not in plain:
            raise RecordError(f"{path.name} is JSON, but not a saved session.")
        if plain["version"] == 1:
            plain = migrate_session(plain)
        if plain["version"] != SCHEMA_VERSION:
            raise RecordError(
                f"{path.name} was written in format {plain['version']}, this version reads format {SCHEMA_VERSION}: open it with the version that wrote it."
            )
        session = cls.from_data(from_jsonable(SessionData, plain, path.name))
        session._note_other_torch(path.name)
        return session

    def _note_other_torch(self, name: str) -> None:
        recorded, here = self.versions.get("torch"), torch_version()
        if recorded and here and recorded.partition("+")[0] != here.partition("+")[0]:
            self._other_torch_note = (
                f"{name} was recorded with torch {recorded}; torch {here} is installed and runs what is rerun."
            )
            self.add_note(self._other_torch_note)

    @classmethod
    def from_data(cls, data: SessionData) -> Session:
        """Return a session with these records."""
        session = cls(subject=data.compiler, level=data.level, target=data.target, device=data.device)
        session.versions = dict(data.versions)
        session.seconds = data.seconds
        session.calls_dropped = data.calls_dropped
        session.started_at, session.ranks = data.started_at, data.ranks
        for kind, key in RECORD_KEYS.items():
            session._records[kind] = {key(r) if key else n: r for n, r in enumerate(getattr(data, kind))}
        return session
