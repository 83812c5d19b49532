"""Files of a ``TORCH_TRACE`` log or folder, decompressed if necessary."""

from __future__ import annotations

import bz2
import gzip
import importlib
import lzma
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import BinaryIO, cast

from engine.errors import NotATrace

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
