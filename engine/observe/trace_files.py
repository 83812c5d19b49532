"""Files of a ``TORCH_TRACE`` log, decompressed if necessary, and the texts of events.

A text is in memory (live observation) or in a log file (loaded trace).
"""

from __future__ import annotations

import bz2
import functools
import gzip
import importlib
import lzma
import os
import tempfile
import weakref
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from threading import Lock
from typing import BinaryIO, Protocol, cast

from engine.errors import NotATrace
from engine.process_state import make_lock

CACHED_TEXTS = 16
"""Number of texts of a file that stay in memory after they were read."""
MAX_UNPACKED_BYTES = 16 << 30
"""Maximum number of bytes that a compressed trace is decompressed to; the rest is dropped."""
_SUFFIXES = (".log", ".txt", ".gz", ".bz2", ".xz", ".zst", ".trace")


def trace_files(path: Path) -> list[Path]:
    """Return the files of a log or a folder, by name.

    Raises:
        NotATrace: the path does not exist, or is a folder without files.
    """
    if path.is_file():
        return [path]
    if not path.is_dir():
        raise NotATrace(f"The file or folder {path} does not exist.")
    files = sorted(p for p in path.iterdir() if p.is_file())
    named = [p for p in files if "torch_trace" in p.name or p.name.endswith(_SUFFIXES)]
    if not (named or files):
        raise NotATrace(f"The folder {path.name} contains no files.")
    return named or files


def open_decompressed(path: Path) -> tuple[BinaryIO, bool]:
    """Open a file, decompressed into a temporary file if necessary.

    Also returns False if it could not be decompressed completely.
    """
    stream = path.open("rb")
    magic = stream.read(6)
    stream.seek(0)
    unpack = _unpacker(magic, path)
    if unpack is None:
        return stream, True
    # Not closed here: it is read as long as the session exists.
    unpacked = cast("BinaryIO", tempfile.TemporaryFile(prefix="torch-trace-"))  # noqa: SIM115
    is_whole = True
    with stream:
        try:
            for block in unpack(stream):
                unpacked.write(block)
                if unpacked.tell() > MAX_UNPACKED_BYTES:
                    is_whole = False
                    break
        except (OSError, EOFError, ValueError, lzma.LZMAError, RuntimeError):
            is_whole = False
    unpacked.seek(0)
    return unpacked, is_whole


def _unpacker(magic: bytes, path: Path) -> Callable[[BinaryIO], Iterator[bytes]] | None:
    if magic.startswith(b"\x1f\x8b"):
        return lambda stream: _blocks(cast("BinaryIO", gzip.GzipFile(fileobj=stream)))
    if magic.startswith(b"BZh"):
        return lambda stream: _blocks(cast("BinaryIO", bz2.BZ2File(stream)))
    if magic.startswith(b"\xfd7zXZ"):
        return lambda stream: _blocks(cast("BinaryIO", lzma.LZMAFile(stream)))
    if magic.startswith(b"\x28\xb5\x2f\xfd"):
        return _zstd(path)
    return None


def _zstd(path: Path) -> Callable[[BinaryIO], Iterator[bytes]]:
    """Return the Zstandard reader, which Python has since 3.14."""
    try:
        zstd = importlib.import_module("compression.zstd")
    except ImportError:
        raise NotATrace(
            f"{path.name} is compressed with Zstandard, which this Python cannot read. Decompress it first: unzstd {path.name}"
        ) from None
    return lambda stream: _blocks(zstd.ZstdFile(stream))


def _blocks(stream: BinaryIO) -> Iterator[bytes]:
    while block := stream.read(1 << 16):
        yield block


class Payload(Protocol):
    """A text that can be read repeatedly."""

    def text(self) -> str:
        """Return the whole text."""
        ...

    def __hash__(self) -> int:
        """Hash by identity."""
        ...


@dataclass(eq=False, slots=True)
class InMemoryPayload:
    """A payload whose text is in memory, not in a trace file."""

    _text: str

    def text(self) -> str:
        """Return the text."""
        return self._text


class TraceFile:
    """File that payloads are read from, by several threads.

    Its descriptor is closed when the last payload is freed.
    """

    def __init__(self, stream: BinaryIO) -> None:
        descriptor = os.dup(stream.fileno())
        weakref.finalize(self, os.close, descriptor)
        self.read = functools.partial(_read_bytes, descriptor, make_lock())
        """Returns bytes of the file by start and length; fewer if it was truncated meanwhile."""
        self.read_text = functools.lru_cache(CACHED_TEXTS)(functools.partial(_read_text, self.read))
        """Returns the text of a payload by start and length; the last texts stay in memory."""


def _read_bytes(descriptor: int, lock: Lock, start: int, length: int) -> bytes:
    pieces: list[bytes] = []
    while length > 0 and (piece := _read_piece(descriptor, lock, start, length)):
        pieces.append(piece)
        start, length = start + len(piece), length - len(piece)
    return b"".join(pieces)


def _read_piece(descriptor: int, lock: Lock, start: int, length: int) -> bytes:
    if hasattr(os, "pread"):  # leaves the file position, which a forked process shares, unchanged
        return os.pread(descriptor, length, start)
    with lock:
        os.lseek(descriptor, start, os.SEEK_SET)
        return os.read(descriptor, length)


def _read_text(read: Callable[[int, int], bytes], start: int, length: int) -> str:
    return decode_payload(read(start, length))


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


@dataclass(eq=False, slots=True)
class FilePayload:
    """A payload in a trace file, where each of its lines starts with a tab."""

    _file: TraceFile
    _start: int
    _length: int

    def text(self) -> str:
        """Return the payload without its tabs; empty if the file can no longer be read."""
        try:
            return self._file.read_text(self._start, self._length)
        except (OSError, ValueError):
            return ""


@dataclass(eq=False, slots=True)
class PayloadSlice:
    """A slice of another payload's text, in characters."""

    _whole: Payload
    _start: int
    _end: int

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
