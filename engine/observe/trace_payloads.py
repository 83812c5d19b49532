"""Texts of trace events: in memory (live observation) or in a log file (loaded trace)."""

from __future__ import annotations

import contextlib
import os
import weakref
from collections.abc import Iterator
from typing import BinaryIO, Protocol

from engine.process_state import make_lock


class Payload(Protocol):
    """A text that can be read repeatedly."""

    def text(self) -> str:
        """Return the whole text."""
        ...

    def __hash__(self) -> int:
        """Hash by identity."""
        ...


class InMemoryPayload:
    """A payload whose text is in memory, not in a trace file."""

    __slots__ = ("_text",)

    def __init__(self, text: str) -> None:
        self._text = text

    def text(self) -> str:
        """Return the text."""
        return self._text


class TraceFile:
    """File that payloads are read from, by several threads.

    Its descriptor is closed when the last payload is freed.
    """

    def __init__(self, stream: BinaryIO) -> None:
        self._descriptor = os.dup(stream.fileno())
        self._lock = make_lock()
        self._finalizer = weakref.finalize(self, os.close, self._descriptor)

    def read(self, start: int, length: int) -> bytes:
        """Return bytes of the file; fewer if it was truncated meanwhile."""
        pieces: list[bytes] = []
        while length > 0 and (piece := self._read(start, length)):
            pieces.append(piece)
            start, length = start + len(piece), length - len(piece)
        return b"".join(pieces)

    def _read(self, start: int, length: int) -> bytes:
        if hasattr(os, "pread"):  # leaves the file position, which a forked process shares, unchanged
            return os.pread(self._descriptor, length, start)
        with self._lock:
            os.lseek(self._descriptor, start, os.SEEK_SET)
            return os.read(self._descriptor, length)

    def close(self) -> None:
        """Close the file; texts not read yet are empty from then on."""
        self._finalizer()


class BlockReader:
    """Reads a trace file sequentially from its start, with its own position."""

    def __init__(self, file: TraceFile) -> None:
        self._file = file
        self._offset = 0

    def read(self, length: int) -> bytes:
        """Return the next bytes; none at the end."""
        block = self._file.read(self._offset, length)
        self._offset += len(block)
        return block


class FilePayload:
    """A payload in a trace file, where each of its lines starts with a tab."""

    __slots__ = ("_current", "_file", "_length", "_start")

    def __init__(self, file: TraceFile, start: int, length: int) -> None:
        self._file = file
        self._start = start
        self._length = length
        self._current: bytes | str | None = None

    @contextlib.contextmanager
    def with_bytes(self, payload: bytes) -> Iterator[None]:
        """Use these bytes, just read, as the payload while the context is open."""
        self._current = payload
        try:
            yield
        finally:
            self._current = None

    def text(self) -> str:
        """Return the payload without its tabs; empty if the file can no longer be read."""
        now = self._current
        if isinstance(now, bytes):
            now = self._current = decode_payload(now)
        if now is not None:
            return now
        try:
            return decode_payload(self._file.read(self._start, self._length))
        except (OSError, ValueError):
            return ""


class PayloadSlice:
    """A slice of another payload's text, in characters."""

    __slots__ = ("_end", "_start", "_whole")

    def __init__(self, whole: Payload, start: int, end: int) -> None:
        self._whole = whole
        self._start = start
        self._end = end

    def text(self) -> str:
        """Return the slice without empty lines around it."""
        return self._whole.text()[self._start : self._end].strip("\n")


def strip_tabs(payload: bytes) -> bytes:
    """Remove the tab that starts each line of a payload."""
    if b"\r\n" in payload[:4096]:  # written on Windows
        payload = payload.replace(b"\r\n", b"\n").removesuffix(b"\r")
    return payload.replace(b"\n\t", b"\n")[1:]


def decode_payload(payload: bytes) -> str:
    """Decode a payload without its tabs; invalid UTF-8 becomes replacement characters."""
    return strip_tabs(payload).decode("utf-8", "replace")
