"""Loader of ``TORCH_TRACE`` logs: one file, or a folder with one file per process or rank.

Files are read as streams; large texts are not retained but read from the file on access.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from engine.errors import NotATrace
from engine.ir.user_code_files import display_name
from engine.observe.json_values import as_int, as_list, as_text
from engine.observe.log_reader import LogDamage, LogRecord, read_log_records
from engine.observe.session_builder import SessionBuilder
from engine.observe.source_files import cell_in_memory, read_matching_file, reconstruct_file
from engine.observe.trace_events import parse_event
from engine.observe.trace_files import BlockReader, FilePayload, TraceFile, open_decompressed, trace_files
from engine.records.bytecode import SourceFile
from engine.records.runtime import StageFailure
from engine.records.session import Session

_SKIPPED = (b'{"chromium_event": ',)
_RANK = re.compile(r"rank_(\d{1,6})_")
_LIBRARY = re.compile(r"^(?P<library>.+[/\\]torch)[/\\]_(?:dynamo|logging|functorch|inductor)[/\\]\w+\.py$")
ProgressCallback = Callable[[int, int], None]
"""Called with the bytes read and the total bytes."""


def load_torch_trace(
    path: str | Path, progress: ProgressCallback | None = None, *, read_sources: bool = False
) -> Session:
    """Load a ``TORCH_TRACE`` log, or a folder of them (one per process or rank).

    With ``read_sources``, Python files of this machine that the log names are added to the session, if all lines
    that the log has of them match. Allow it only for a log that you trust: it may name any file.

    Returns a Session with compiler "torch". Large texts are read from the file on access, so it must not
    change meanwhile. Nothing in a log is evaluated. Damaged lines are skipped. The session's notes have counts
    of damaged lines and unknown event names.

    Raises:
        NotATrace: the path does not exist, or contains no torch trace.
    """
    files = trace_files(Path(path))
    session = Session(subject="torch")
    total = sum(file.stat().st_size for file in files)
    load = _TraceLoader(session, total, progress, has_several_files=len(files) > 1)
    for file in files:
        load.load_file(file)
    if not load.damage.records:
        name = Path(path).name
        raise NotATrace(
            f"{name} contains no torch trace. Create one with TORCH_TRACE=folder python program.py, and pass the folder or a file in it."
        )
    load.finish(Path(path).name, read_sources=read_sources)
    return session


def is_torch_trace(path: Path) -> bool:
    """Return True if a path may be a trace rather than a saved session.

    A trace is a folder, or a file that does not start with a JSON object.
    """
    if path.is_dir():
        return True
    try:
        with path.open("rb") as stream:
            return not stream.read(64).lstrip().startswith(b"{")
    except OSError:
        return False


@dataclass
class _InternTable:
    """Interned strings of one process by number; undefined numbers are reported as missing."""

    strings: dict[int, str] = field(default_factory=dict)
    missing: set[int] = field(default_factory=set)

    def add(self, value: Any) -> str:
        """Add a ``str`` record ``[text, number]``; return the text."""
        values = as_list(value)
        number = as_int(values[1]) if len(values) == 2 else None
        if number is None:
            return ""
        self.strings[number] = as_text(values[0])
        return self.strings[number]

    def __call__(self, number: int) -> str:
        if number not in self.strings:
            self.missing.add(number)
        return self.strings.get(number, "?")


@dataclass
class _TraceProcess:
    """Session builder and string table of one process; the name of its log and its start."""

    builder: SessionBuilder
    strings: _InternTable
    rank: str
    log: str


class _TraceLoader:
    """Processes, damage and progress of one load."""

    def __init__(
        self, session: Session, total: int, progress: ProgressCallback | None, *, has_several_files: bool
    ) -> None:
        self.session = session
        self.damage = LogDamage()
        self._total = total
        self._has_several_files = has_several_files
        self._read = 0
        self._progress = progress
        self._processes: dict[tuple[Path, int], _TraceProcess] = {}
        self._unrecognized: Counter[str] = Counter()
        self._failed: set[str] = set()
        self._notes: list[str] = []

    def load_file(self, path: Path) -> None:
        """Read one file of the trace."""
        rank = _RANK.search(path.name)
        stream, whole = open_decompressed(path)
        if not whole:
            self._notes.append(
                f"{path.name} is truncated or its compressed data is damaged; only the readable part is shown."
            )
        with stream:
            file = TraceFile(stream)
        for line in read_log_records(BlockReader(file), self.damage, self._on_read, _SKIPPED):
            if line.metadata:
                self._add_record(line, file, path, rank[1] if rank else "")

    def _on_read(self, count: int) -> None:
        self._read += count
        if self._progress is not None:
            self._progress(min(self._read, self._total), self._total)

    def _add_record(self, line: LogRecord, file: TraceFile, path: Path, rank: str) -> None:
        process = self._process(path, line, rank)
        if "str" in line.metadata:
            text = process.strings.add(line.metadata["str"])
            if not process.builder.sources.torch_dir and (match := _LIBRARY.match(text)):
                process.builder.sources.torch_dir = match["library"]
            return
        payload = FilePayload(file, line.start, line.length) if line.length else None
        event = parse_event(line.metadata, payload)
        if event is None:
            self._unrecognized["records without one clear kind"] += 1
            return
        try:
            process.builder.add(event)
        except Exception as error:
            # The record may be malicious or from a newer torch; the other records must still load.
            self._record_failure(event.name, error)

    def _process(self, path: Path, line: LogRecord, rank: str) -> _TraceProcess:
        key = (path, line.process_id)
        if key not in self._processes:
            recorded_rank = line.metadata.get("rank")
            rank = rank if as_int(recorded_rank) is None else str(recorded_rank)
            strings = _InternTable()
            first = not self._processes
            prefix = "" if first else f"r{rank}/" if rank else f"p{len(self._processes)}/"
            taken = {p.builder.prefix for p in self._processes.values()}
            prefix = prefix if prefix not in taken else f"p{len(self._processes)}/"
            suffix = (
                ""
                if not self._has_several_files and first
                else f" (rank {rank})"
                if rank
                else ""
                if first
                else f" (process {line.process_id})"
            )
            fold = SessionBuilder(
                self.session, library="", names=strings, read_file=_empty_source, prefix=prefix, suffix=suffix
            )
            date, time = (part.decode() for part in line.stamp)
            log = f"process {line.process_id} ({path.name[:80]}, from {date[:2]}-{date[2:]} {time[:8]})"
            self._processes[key] = _TraceProcess(fold, strings, rank, log)
        return self._processes[key]

    def _record_failure(self, name: str, error: Exception) -> None:
        sentence = f"{name[:80]} could not be read: {type(error).__name__}: {str(error)[:200]}"
        if sentence not in self._failed and len(self._failed) < 50:
            self._failed.add(sentence)
            self.session.add_failure(StageFailure("observe", sentence, "the record is skipped"))

    def finish(self, name: str, *, read_sources: bool) -> None:
        """Finish after the last file: find the source files, add notes on missing data."""
        for process in self._processes.values():
            sources = process.builder.sources
            for file in sources.files:
                source = _find_source(file, sources.known_lines(file), read_sources=read_sources)
                if source is not None:
                    sources.set_text(source)
            process.builder.finish()
            self._unrecognized.update(process.builder.unknown_events)
        self.session.set_stage("")
        self.session.seconds = _total_seconds(self.session)
        self._add_notes(name)

    def _add_notes(self, name: str) -> None:
        for sentence in (*self._notes, *(f"{name}: {s}." for s in self.damage.messages())):
            self.session.add_note(sentence)
        logs = [p.log for p in self._processes.values()]
        if len(logs) > 1 and not any(p.rank for p in self._processes.values()):
            more = f" and {len(logs) - 8:,} more" if len(logs) > 8 else ""
            self.session.add_note(
                f"{name} has logs of {len(logs):,} processes without a rank, shown together: {', '.join(logs[:8])}{more}."
                " Functions of the first have no suffix. If they are several runs, pass one log to see one run."
            )
        missing = sum(len(p.strings.missing) for p in self._processes.values())
        if missing:
            self.session.add_note(f'{name}: {missing:,} file names are not defined in this trace and are shown as "?".')
        if self._unrecognized:
            kinds = ", ".join(f"{key[:60]} ({count:,})" for key, count in self._unrecognized.most_common(20))
            more = f" and {len(self._unrecognized) - 20} more" if len(self._unrecognized) > 20 else ""
            self.session.add_note(f"Unknown kinds of records, shown as text where possible: {kinds}{more}.")


def _empty_source(file: str) -> SourceFile:
    """Return an empty source: files are matched only once all their lines are known."""
    return SourceFile(file, display_name(file), "")


def _find_source(file: str, known_lines: dict[int, str], *, read_sources: bool) -> SourceFile | None:
    name = display_name(file)
    if (cell := cell_in_memory(file, name)) is not None:
        return cell
    matching, rebuilt = read_matching_file(file, known_lines, name), reconstruct_file(file, known_lines, name)
    if matching is None or read_sources:
        return matching or rebuilt
    return rebuilt and replace(rebuilt, is_withheld=True)


def _total_seconds(session: Session) -> float:
    """Return the seconds from the first compilation's start to the last one's end."""
    return max((t.start + t.seconds for c in session.compilations for t in c.timings if not t.parent), default=0.0)
