"""Log reader: splits the bytes of a torch trace into records, block by block.

Damaged lines are skipped and counted.
"""

from __future__ import annotations

import calendar
import hashlib
import itertools
import json
import re
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

from engine.observe.json_values import as_text
from engine.observe.trace_files import strip_tabs

BLOCK_SIZE = 1 << 22
MAX_RECORD_BYTES = 1 << 26
"""Maximum size of a record; longer ones are truncated."""
IGNORED_KINDS = frozenset({"chromium_event"})
"""Kinds whose payloads are unused; they are not checked for damage.

They are a quarter of a trace.
"""
JsonParser = Callable[[bytes], dict[str, Any] | None]
_YEAR_2000 = 946_684_800
_RECORD_START = re.compile(rb"\n(?=[^\t])")
_LOG_PREFIX = re.compile(
    rb"(?P<level>[VIWEC])(?P<date>\d{4}) (?P<time>\d\d:\d\d:\d\d\.\d{1,9}) (?P<process>\d{1,20}) [^\n]{1,400}?:\d{1,9}\] {0,4}(?:\[[^\]\n]{0,80}\] {0,4}){0,3}(?=\{)"
)
_USUAL_PREFIX = re.compile(
    rb"(?P<level>[VIWEC])(?P<date>\d{4}) (?P<time>\d\d:\d\d:\d\d\.\d{1,9}) (?P<process>\d{1,20}) [^\s:]{1,400}:\d{1,9}\] (?=\{)"
)
"""The prefix as torch writes it: ``_LOG_PREFIX`` without its variants."""


class ByteStream(Protocol):
    """A byte stream that is read block by block."""

    def read(self, length: int, /) -> bytes:
        """Return the next bytes; none at the end."""
        ...


class RawRecord(NamedTuple):
    """A line of the log and its payload: the following lines that start with a tab.

    ``start`` is the payload's offset in the file.
    """

    head: bytes
    payload: bytes
    start: int
    is_truncated: bool = False


class LogRecord(NamedTuple):
    """A parsed trace record: envelope, process id, payload with its tabs, and its offset."""

    metadata: dict[str, Any]
    process_id: int
    start: int
    raw_payload: bytes
    stamp: tuple[bytes, bytes] = (b"", b"")
    """Date ("MMDD") and time of the line."""

    @property
    def length(self) -> int:
        """Length of the payload in the file; 0 if there is none."""
        return len(self.raw_payload)

    @property
    def payload(self) -> bytes:
        """The payload without its tabs."""
        return strip_tabs(self.raw_payload)

    @property
    def seconds(self) -> float:
        """Seconds of the line's date and time since the start of a leap year; 0 if unreadable."""
        whole, _, fraction = self.stamp[1].partition(b".")
        try:
            at = time.strptime(f"2000{self.stamp[0].decode()} {whole.decode()}", "%Y%m%d %H:%M:%S")
        except ValueError:
            return 0.0
        return calendar.timegm(at) - _YEAR_2000 + float(b"0." + fraction)


@dataclass
class LogDamage:
    """Counts of skipped and damaged data."""

    records: int = 0
    foreign_lines: int = 0
    """Lines that are not part of a trace."""
    invalid_json: int = 0
    """Trace lines with invalid JSON."""
    interleaved: int = 0
    """The part of ``invalid_json`` in which another, complete record starts within the line."""
    corrupt_payloads: int = 0
    """Payloads whose digest does not match: truncated, or mixed with others."""
    truncated: int = 0
    """Records truncated to the maximum size."""

    def messages(self) -> list[str]:
        """Return messages for the user about the damage."""
        counts = (
            (self.foreign_lines, "line{s} outside of torch's trace skipped"),
            (self.invalid_json, "damaged line{s} skipped"),
            (self.corrupt_payloads, "text{s} truncated or mixed with others; only the readable part is shown"),
            (self.truncated, f"record{{s}} longer than {MAX_RECORD_BYTES >> 20} MB truncated"),
        )
        return [f"{count:,} {text.format(s='' if count == 1 else 's')}" for count, text in counts if count]


class IntactPayloads:
    """Finds payloads whose digest does not match; an equal payload is not digested again."""

    def __init__(self) -> None:
        self._intact: set[tuple[str, int, int]] = set()

    def __contains__(self, payload: tuple[str, bytes]) -> bool:
        """Return True if the bytes, with their tabs, have torch's digest."""
        digest, raw = payload
        key = (digest, len(raw), hash(raw))
        if key in self._intact:
            return True
        is_intact = hashlib.md5(strip_tabs(raw), usedforsecurity=False).hexdigest() == digest
        if is_intact:
            self._intact.add(key)
        return is_intact


def read_raw_records(stream: ByteStream, seen: Callable[[int], None] = lambda _: None) -> Iterator[RawRecord]:
    """Yield raw records in order; memory use is bounded by one block and one record.

    ``seen`` is called with the number of bytes read.
    """
    buffer, base, is_skipping = b"", 0, False
    while True:
        block = stream.read(BLOCK_SIZE)
        seen(len(block))
        buffer = buffer + block if buffer else block
        if is_skipping:
            match = _RECORD_START.search(buffer)
            dropped = match.end() if match else max(len(buffer) - 1, 0) if block else len(buffer)
            buffer, base, is_skipping = buffer[dropped:], base + dropped, match is None and bool(block)
        starts = [0, *(m.end() for m in _RECORD_START.finditer(buffer))]
        last = len(buffer)
        if block:
            last = starts.pop()
        for start, end in itertools.pairwise([*starts, last]):
            if end > start:
                yield _make_raw_record(buffer, start, end, base)
        buffer, base = buffer[last:], base + last
        if not block:
            return
        if len(buffer) > MAX_RECORD_BYTES:
            yield _make_raw_record(buffer, 0, len(buffer), base, is_cut=True)
            base += len(buffer) - 1
            buffer, is_skipping = buffer[-1:], True


def _make_raw_record(buffer: bytes, start: int, end: int, base: int, *, is_cut: bool = False) -> RawRecord:
    line_end = buffer.find(b"\n", start, end)
    if line_end < 0:
        return RawRecord(buffer[start:end], b"", 0, is_cut)
    payload = buffer[line_end + 1 : end]
    return RawRecord(buffer[start:line_end], payload.removesuffix(b"\n"), base + line_end + 1, is_cut)


def read_log_records(
    stream: ByteStream,
    damage: LogDamage,
    seen: Callable[[int], None] = lambda _: None,
    skipped: tuple[bytes, ...] = (),
    intact: IntactPayloads | None = None,
    parse: JsonParser | None = None,
) -> Iterator[LogRecord]:
    """Yield the parsed records of a trace; count everything else in ``damage``.

    Records whose JSON starts with one of ``skipped`` are left out; the first and the last record of a trace
    are yielded without metadata then. Logs that share ``intact`` share what is known of equal payloads;
    ``parse`` is called with the JSON of each line.
    """
    parse = parse or parse_json
    intact = IntactPayloads() if intact is None else intact
    last_left_out = b""
    for raw in read_raw_records(stream, seen):
        if raw.is_truncated:
            damage.truncated += 1
        head = raw.head
        if skipped and _is_skipped(head, skipped):
            last_left_out = head
            if not damage.records:
                yield from _without_metadata(head)
            damage.records += 1
            continue
        prefix = _USUAL_PREFIX.match(head) or _LOG_PREFIX.search(head)
        if prefix is None:
            damage.foreign_lines += bool(head.strip()) or bool(raw.payload)
            continue
        text = head[prefix.end() :]
        metadata = parse(text)
        if metadata is None:
            damage.invalid_json += 1
            prefix, metadata = _interleaved_record(raw.head)
            damage.interleaved += metadata is not None
        if prefix is None or metadata is None:
            continue
        damage.records += 1
        last_left_out = b""
        digest = as_text(metadata.get("has_payload"))
        is_wanted = not metadata.keys() & IGNORED_KINDS
        if digest and not raw.is_truncated and is_wanted:
            damage.corrupt_payloads += (digest, raw.payload) not in intact
        yield LogRecord(metadata, int(prefix["process"]), raw.start, raw.payload, (prefix["date"], prefix["time"]))
    yield from _without_metadata(last_left_out)


def _is_skipped(head: bytes, kinds: tuple[bytes, ...]) -> bool:
    """Return True if a whole line is of one of these kinds, and holds no second record."""
    start = head.find(b"] {")
    return head.startswith(kinds, start + 2) and head.endswith(b"}") and head.find(b"] {", start + 3) < 0


def _without_metadata(head: bytes) -> Iterator[LogRecord]:
    prefix = _USUAL_PREFIX.match(head) or _LOG_PREFIX.search(head)
    if prefix is not None:
        yield LogRecord({}, int(prefix["process"]), 0, b"", (prefix["date"], prefix["time"]))


def _interleaved_record(head: bytes) -> tuple[re.Match[bytes] | None, dict[str, Any] | None]:
    """Return a record that starts within a line (two processes wrote to one file)."""
    matches = list(_LOG_PREFIX.finditer(head))
    return (matches[-1], parse_json(head[matches[-1].end() :])) if len(matches) > 1 else (None, None)


def parse_json(text: bytes) -> dict[str, Any] | None:
    """Return the object that a line's JSON describes; None if it is damaged."""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None
