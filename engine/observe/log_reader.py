"""Takes a trace's bytes apart into records, a block at a time, whatever damage they have."""

from __future__ import annotations

import hashlib
import itertools
import json
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Protocol

from engine.observe.trace_payloads import strip_tabs

BLOCK_SIZE = 1 << 22
MAX_RECORD_BYTES = 1 << 26
"""A record longer than this is cut."""
IGNORED_KINDS = frozenset({"chromium_event"})
"""Kinds whose payloads, a quarter of a trace, tell nothing that is used: they are not even checked for damage."""
_RECORD_START = re.compile(rb"\n(?=[^\t])")
_LOG_PREFIX = re.compile(
    rb"(?P<level>[VIWEC])(?P<date>\d{4}) (?P<time>\d\d:\d\d:\d\d\.\d{1,9}) (?P<process>\d{1,10}) [^\n]{1,400}?:\d{1,9}\] {0,4}(?:\[[^\]\n]{0,80}\] {0,4}){0,3}(?=\{)"
)


class ByteStream(Protocol):
    """What is read a block at a time."""

    def read(self, length: int, /) -> bytes:
        """The next bytes; none at the end."""
        ...


@dataclass(frozen=True, slots=True)
class RawRecord:
    """A line, and the lines below it that begin with a tab: ``start`` and ``length`` are theirs in the file, ``payload`` their bytes."""

    head: bytes
    payload: bytes
    start: int
    is_truncated: bool = False


@dataclass(frozen=True, slots=True)
class LogRecord:
    """A record of the trace: its envelope, the process that wrote it, where its payload is (length 0: it has none), and the payload."""

    metadata: dict[str, Any]
    process_id: int
    start: int
    length: int
    payload: bytes


@dataclass
class LogDamage:
    """What was not read, counted."""

    records: int = 0
    foreign_lines: int = 0
    """Lines that are no part of a trace."""
    invalid_json: int = 0
    """Lines of the trace that are no JSON."""
    interleaved: int = 0
    """Of those, lines in which a whole record was found after another's beginning."""
    corrupt_payloads: int = 0
    """Payloads that are not what was written: cut off, or mixed with others."""
    truncated: int = 0
    """Records cut for their length."""

    def messages(self) -> list[str]:
        """What a person should know, in words."""
        told = (
            (self.foreign_lines, "line{s} that are no part of torch's trace were passed over"),
            (self.invalid_json, "damaged line{s} could not be read"),
            (self.corrupt_payloads, "text{s} are cut off or mixed with others, and shown as far as they go"),
            (self.truncated, f"record{{s}} longer than {MAX_RECORD_BYTES >> 20} MB were cut"),
        )
        return [f"{count:,} {text.format(s='' if count == 1 else 's')}" for count, text in told if count]


def read_raw_records(stream: ByteStream, seen: Callable[[int], None] = lambda _: None) -> Iterator[RawRecord]:
    """Lines with the tabbed lines below them, in order, holding no more than a block and a record. ``seen`` is told bytes as they are read."""
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
    stream: ByteStream, damage: LogDamage, seen: Callable[[int], None] = lambda _: None
) -> Iterator[LogRecord]:
    """The records of a trace; everything else is counted in ``damage``."""
    for raw in read_raw_records(stream, seen):
        if raw.is_truncated:
            damage.truncated += 1
        found = _LOG_PREFIX.search(raw.head)
        if found is None:
            damage.foreign_lines += bool(raw.head.strip()) or bool(raw.payload)
            continue
        metadata = _parse_json(raw.head[found.end() :])
        if metadata is None:
            damage.invalid_json += 1
            found, metadata = _interleaved_record(raw.head)
            damage.interleaved += metadata is not None
        if found is None or metadata is None:
            continue
        damage.records += 1
        digest = metadata.get("has_payload")
        is_wanted = not metadata.keys() & IGNORED_KINDS
        payload = strip_tabs(raw.payload) if raw.payload and is_wanted else b""
        if isinstance(digest, str) and not raw.is_truncated and is_wanted:
            damage.corrupt_payloads += hashlib.md5(payload, usedforsecurity=False).hexdigest() != digest
        yield LogRecord(metadata, int(found["process"]), raw.start, len(raw.payload), payload)


def _interleaved_record(head: bytes) -> tuple[re.Match[bytes] | None, dict[str, Any] | None]:
    """The record that began in the midst of a line, where two processes wrote to one file."""
    found = list(_LOG_PREFIX.finditer(head))
    return (found[-1], _parse_json(head[found[-1].end() :])) if len(found) > 1 else (None, None)


def _parse_json(text: bytes) -> dict[str, Any] | None:
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None
