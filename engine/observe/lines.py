"""Takes a trace's bytes apart into records, a block at a time, whatever damage they have."""

from __future__ import annotations

import hashlib
import itertools
import json
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Protocol

from engine.observe.payloads import plain_bytes

BLOCK = 1 << 22
MOST_BYTES = 1 << 26
"""A record longer than this is cut."""
UNREAD = frozenset({"chromium_event"})
"""Kinds whose payloads, a quarter of a trace, tell nothing that is used: they are not even checked for damage."""
_START = re.compile(rb"\n(?=[^\t])")
_HEAD = re.compile(
    rb"(?P<level>[VIWEC])(?P<date>\d{4}) (?P<time>\d\d:\d\d:\d\d\.\d{1,9}) (?P<process>\d{1,10}) [^\n]{1,400}?:\d{1,9}\] {0,4}(?:\[[^\]\n]{0,80}\] {0,4}){0,3}(?=\{)"
)


class Readable(Protocol):
    """What is read a block at a time."""

    def read(self, length: int, /) -> bytes:
        """The next bytes; none at the end."""
        ...


@dataclass(frozen=True, slots=True)
class Raw:
    """A line, and the lines below it that begin with a tab: ``start`` and ``length`` are theirs in the file, ``payload`` their bytes."""

    head: bytes
    payload: bytes
    start: int
    is_cut: bool = False


@dataclass(frozen=True, slots=True)
class Line:
    """A record of the trace: its envelope, the process that wrote it, where its payload is (length 0: it has none), and the payload."""

    metadata: dict[str, Any]
    process: int
    start: int
    length: int
    payload: bytes


@dataclass
class Damage:
    """What was not read, counted."""

    records: int = 0
    foreign: int = 0
    """Lines that are no part of a trace."""
    broken: int = 0
    """Lines of the trace that are no JSON."""
    mixed: int = 0
    """Of those, lines in which a whole record was found after another's beginning."""
    changed: int = 0
    """Payloads that are not what was written: cut off, or mixed with others."""
    long: int = 0
    """Records cut for their length."""

    def sentences(self) -> list[str]:
        """What a person should know, in words."""
        told = (
            (self.foreign, "line{s} that are no part of torch's trace were passed over"),
            (self.broken, "damaged line{s} could not be read"),
            (self.changed, "text{s} are cut off or mixed with others, and shown as far as they go"),
            (self.long, f"record{{s}} longer than {MOST_BYTES >> 20} MB were cut"),
        )
        return [f"{count:,} {text.format(s='' if count == 1 else 's')}" for count, text in told if count]


def raw_records(stream: Readable, seen: Callable[[int], None] = lambda _: None) -> Iterator[Raw]:
    """Lines with the tabbed lines below them, in order, holding no more than a block and a record. ``seen`` is told bytes as they are read."""
    buffer, base, is_skipping = b"", 0, False
    while True:
        block = stream.read(BLOCK)
        seen(len(block))
        buffer = buffer + block if buffer else block
        if is_skipping:
            match = _START.search(buffer)
            dropped = match.end() if match else max(len(buffer) - 1, 0) if block else len(buffer)
            buffer, base, is_skipping = buffer[dropped:], base + dropped, match is None and bool(block)
        starts = [0, *(m.end() for m in _START.finditer(buffer))]
        last = len(buffer)
        if block:
            last = starts.pop()
        for start, end in itertools.pairwise([*starts, last]):
            if end > start:
                yield _raw(buffer, start, end, base)
        buffer, base = buffer[last:], base + last
        if not block:
            return
        if len(buffer) > MOST_BYTES:
            yield _raw(buffer, 0, len(buffer), base, is_cut=True)
            base += len(buffer) - 1
            buffer, is_skipping = buffer[-1:], True


def _raw(buffer: bytes, start: int, end: int, base: int, *, is_cut: bool = False) -> Raw:
    line_end = buffer.find(b"\n", start, end)
    if line_end < 0:
        return Raw(buffer[start:end], b"", 0, is_cut)
    payload = buffer[line_end + 1 : end]
    return Raw(buffer[start:line_end], payload.removesuffix(b"\n"), base + line_end + 1, is_cut)


def lines(stream: Readable, damage: Damage, seen: Callable[[int], None] = lambda _: None) -> Iterator[Line]:
    """The records of a trace; everything else is counted in ``damage``."""
    for raw in raw_records(stream, seen):
        if raw.is_cut:
            damage.long += 1
        found = _HEAD.search(raw.head)
        if found is None:
            damage.foreign += bool(raw.head.strip()) or bool(raw.payload)
            continue
        metadata = _json(raw.head[found.end() :])
        if metadata is None:
            damage.broken += 1
            found, metadata = _inner(raw.head)
            damage.mixed += metadata is not None
        if found is None or metadata is None:
            continue
        damage.records += 1
        digest = metadata.get("has_payload")
        is_wanted = not metadata.keys() & UNREAD
        payload = plain_bytes(raw.payload) if raw.payload and is_wanted else b""
        if isinstance(digest, str) and not raw.is_cut and is_wanted:
            damage.changed += hashlib.md5(payload, usedforsecurity=False).hexdigest() != digest
        yield Line(metadata, int(found["process"]), raw.start, len(raw.payload), payload)


def _inner(head: bytes) -> tuple[re.Match[bytes] | None, dict[str, Any] | None]:
    """The record that began in the midst of a line, where two processes wrote to one file."""
    found = list(_HEAD.finditer(head))
    return (found[-1], _json(head[found[-1].end() :])) if len(found) > 1 else (None, None)


def _json(text: bytes) -> dict[str, Any] | None:
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None
