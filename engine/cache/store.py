"""A folder of texts that outlive the process: nothing in it is looked into before it is known to be what this user's process wrote.

Each file carries a keyed hash (HMAC, RFC 2104) of its name and its text; the key lies beside them, readable by the user alone.
"""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import os
import pathlib
import secrets
import stat
import tempfile
import time
from dataclasses import dataclass

MAX_FILE_BYTES = 1 << 26
"""Bytes of the largest file that is read."""
MAX_STORE_BYTES = 1 << 29
"""Bytes that the folder may hold; the oldest files go first."""
_STALE_TEMP_FILE_SECONDS = 3600
"""Seconds after which nobody is writing a file any more."""
_HEADER = b"compile-explorer 1\n"


class DiskStoreError(Exception):
    """A text cannot be had, or cannot be kept; the sentence says why."""


def user_cache_dir() -> pathlib.Path:
    """Where this user's compiled results lie: below ``$XDG_CACHE_HOME``, or ``~/.cache``."""
    named = os.environ.get("XDG_CACHE_HOME", "")
    root = pathlib.Path(named) if pathlib.Path(named).is_absolute() else pathlib.Path.home() / ".cache"
    return root / "compile-explorer"


@dataclass(frozen=True)
class DiskStore:
    """Texts by name in one folder. Names are hexadecimal digests."""

    folder: pathlib.Path

    def get(self, name: str) -> str | None:
        """The text of this name; None when there is none.

        Raises:
            NotStored: there is a file of this name that is damaged or foreign, or the folder is not the user's own.
        """
        path = self.folder / name
        try:
            if not self._is_own(self.folder) or not path.exists():
                return None
            data = self._read(path, MAX_FILE_BYTES)
            key = self._key()
        except FileNotFoundError:  # another process made room
            return None
        except OSError as error:
            raise DiskStoreError(f"the cache cannot be read: {error.strerror}") from error
        head, mac, text = data[: len(_HEADER)], data[len(_HEADER) : len(_HEADER) + 64], data[len(_HEADER) + 64 :]
        if head != _HEADER or not hmac.compare_digest(mac, _mac(key, name, text)):
            raise DiskStoreError("a file in the cache was damaged, or written by somebody else")
        with contextlib.suppress(OSError):  # the folder may be read only, or another process may have made room
            os.utime(path)
        return text.decode()

    def put(self, name: str, text: str) -> None:
        """Keep a text under a name. Another process sees all of it or nothing.

        Raises:
            NotStored: the folder cannot be written, or is not the user's own.
        """
        data = text.encode()
        if len(data) + len(_HEADER) + 64 > MAX_FILE_BYTES:
            raise DiskStoreError("it is too large for the cache")
        try:
            self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            if not self._is_own(self.folder):
                raise DiskStoreError("others may write to the folder of the cache")
            self._write(self.folder / name, _HEADER + _mac(self._key(), name, data) + data)
            self._evict_oldest()
        except OSError as error:
            raise DiskStoreError(f"the cache cannot be written: {error.strerror}") from error

    def _key(self) -> bytes:
        path = self.folder / "key"
        if not path.exists():
            made = self._temporary(secrets.token_bytes(32))
            try:
                os.link(made, path)  # whoever comes first
            except FileExistsError:
                pass
            finally:
                made.unlink()
        key = self._read(path, 32)
        if len(key) != 32 or stat.S_IMODE(path.lstat().st_mode) & 0o077:
            raise DiskStoreError("the key of the cache is damaged, or others may read it")
        return key

    def _read(self, path: pathlib.Path, largest: int) -> bytes:
        found = path.lstat()
        if not _is_owned_by_user(found) or found.st_size > largest:
            raise DiskStoreError("a file in the cache was damaged, or written by somebody else")
        return path.read_bytes()

    def _write(self, path: pathlib.Path, data: bytes) -> None:
        made = self._temporary(data)
        try:
            made.replace(path)
        except OSError:
            made.unlink(missing_ok=True)
            raise

    def _temporary(self, data: bytes) -> pathlib.Path:
        handle, name = tempfile.mkstemp(dir=self.folder, prefix=".")
        path = pathlib.Path(name)
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(data)
        except OSError:  # a full disk is not filled further
            path.unlink(missing_ok=True)
            raise
        return path

    def _evict_oldest(self) -> None:
        files = []
        for path in self.folder.iterdir():
            with contextlib.suppress(FileNotFoundError):  # another process makes room as well
                found = path.stat()
                is_being_written = path.name.startswith(".") and time.time() - found.st_mtime < _STALE_TEMP_FILE_SECONDS
                if path.name != "key" and not is_being_written:
                    files.append((found.st_mtime, found.st_size, path))
        over = sum(size for _, size, _ in files) - MAX_STORE_BYTES
        for _, size, path in sorted(files):
            if over <= 0:
                return
            path.unlink(missing_ok=True)
            over -= size

    @staticmethod
    def _is_own(path: pathlib.Path) -> bool:
        """Whether a file or folder is there, and the user's alone."""
        try:
            return _is_owned_by_user(path.lstat())
        except FileNotFoundError:
            return False


def _is_owned_by_user(found: os.stat_result) -> bool:
    """Whether what was looked at is no link, belongs to the user, and nobody else may write to it."""
    if stat.S_ISLNK(found.st_mode) or (hasattr(os, "geteuid") and found.st_uid != os.geteuid()):
        return False
    return os.name == "nt" or not found.st_mode & 0o022


def _mac(key: bytes, name: str, text: bytes) -> bytes:
    return hmac.new(key, name.encode() + b"\n" + text, hashlib.sha256).hexdigest().encode()
