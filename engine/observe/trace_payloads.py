"""Texts of a trace, wherever they are: in memory while a compile is observed, in the file that a trace was loaded from."""

from __future__ import annotations

import contextlib
import os
import threading
import weakref
from collections.abc import Iterator
from typing import BinaryIO, Protocol


class Payload(Protocol):
    """A text that can be asked for again and again."""

    def text(self) -> str:
        """The whole text."""
        ...

    def __hash__(self) -> int:
        """Payloads are told apart by identity."""
        ...


class InMemoryPayload:
    """A text in memory."""

    __slots__ = ("_text",)

    def __init__(self, text: str) -> None:
        self._text = text

    def text(self) -> str:
        """The text."""
        return self._text


class TraceFile:
    """The file that payloads are read from, by a descriptor that is closed when the last payload is gone; one reader at a time."""

    def __init__(self, stream: BinaryIO) -> None:
        self._descriptor = os.dup(stream.fileno())
        self._lock = threading.Lock()
        self._finalizer = weakref.finalize(self, os.close, self._descriptor)

    def read(self, start: int, length: int) -> bytes:
        """Bytes of the file; fewer where it has become shorter since."""
        pieces: list[bytes] = []
        while length > 0 and (piece := self._read(start, length)):
            pieces.append(piece)
            start, length = start + len(piece), length - len(piece)
        return b"".join(pieces)

    def _read(self, start: int, length: int) -> bytes:
        if hasattr(os, "pread"):  # moves no place that a forked process shares
            return os.pread(self._descriptor, length, start)
        with self._lock:
            os.lseek(self._descriptor, start, os.SEEK_SET)
            return os.read(self._descriptor, length)

    def close(self) -> None:
        """Give the file back; texts that were not read yet are empty from then on."""
        self._finalizer()


class BlockReader:
    """The same file from its beginning, a block at a time, for a reader that must not be moved by others."""

    def __init__(self, file: TraceFile) -> None:
        self._file = file
        self._offset = 0

    def read(self, length: int) -> bytes:
        """The next bytes; none at the end."""
        block = self._file.read(self._offset, length)
        self._offset += len(block)
        return block


class FilePayload:
    """A payload in a trace file: lines that each begin with a tab."""

    __slots__ = ("_current", "_file", "_length", "_start")

    def __init__(self, file: TraceFile, start: int, length: int) -> None:
        self._file = file
        self._start = start
        self._length = length
        self._current: bytes | str | None = None

    @contextlib.contextmanager
    def with_bytes(self, payload: bytes) -> Iterator[None]:
        """While the context is open, the text is that of these bytes, which were just read and are without tabs."""
        self._current = payload
        try:
            yield
        finally:
            self._current = None

    def text(self) -> str:
        """The payload without its tabs; empty when the file is gone."""
        now = self._current
        if isinstance(now, bytes):
            now = self._current = now.decode("utf-8", "replace")
        if now is not None:
            return now
        try:
            return decode_payload(self._file.read(self._start, self._length))
        except (OSError, ValueError):
            return ""


class PayloadSlice:
    """A stretch of another payload's text, counted in characters."""

    __slots__ = ("_end", "_start", "_whole")

    def __init__(self, whole: Payload, start: int, end: int) -> None:
        self._whole = whole
        self._start = start
        self._end = end

    def text(self) -> str:
        """The stretch, without empty lines around it."""
        return self._whole.text()[self._start : self._end].strip("\n")


def strip_tabs(payload: bytes) -> bytes:
    """A payload as it was before each of its lines got a tab."""
    if b"\r\n" in payload[:4096]:  # written on Windows
        payload = payload.replace(b"\r\n", b"\n").removesuffix(b"\r")
    return payload.replace(b"\n\t", b"\n")[1:]


def decode_payload(payload: bytes) -> str:
    """The same as text; bytes that are no UTF-8 become marks."""
    return strip_tabs(payload).decode("utf-8", "replace")
