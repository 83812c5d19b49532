"""Store of texts on disk that verifies each file before it uses the content.

Each file carries an HMAC (RFC 2104) of its name and text. The key is a file in the same folder that only
the user may read. A file is used only if a process of this user wrote it.
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
from collections.abc import Iterator
from dataclasses import dataclass

try:
    import fcntl
except ImportError:  # Windows: processes do not wait for each other.
    fcntl = None  # type: ignore[assignment]

MAX_FILE_BYTES = 1 << 26
"""Maximum size of a file that is read, in bytes."""
MAX_STORE_BYTES = 1 << 29
"""Maximum size of the folder, in bytes; the oldest files are evicted first."""
_STALE_TEMP_FILE_SECONDS = 3600
"""Age in seconds at which a temporary file is abandoned and may be deleted."""
MAX_WAIT_SECONDS = 60.0
"""Maximum time in seconds to wait for the text that another process is making."""
_POLL_SECONDS = 0.005
_LOCK_PREFIX = ".lock-"
_HEADER = b"compile-explorer 1\n"


class DiskStoreError(Exception):
    """A text cannot be read or stored; the message states the reason."""


@dataclass(frozen=True)
class DiskStore:
    """Texts by name in one folder. Names are hexadecimal digests."""

    folder: pathlib.Path

    def get(self, name: str) -> str | None:
        """Return the text with this name, or None.

        Raises:
            DiskStoreError: the file is damaged or not the user's, or the folder is not the user's.
        """
        path = self.folder / name
        try:
            if not self._is_own(self.folder) or not path.exists():
                return None
            data = self._read(path, MAX_FILE_BYTES)
            key = self._key()
        except FileNotFoundError:  # Another process evicted the file.
            return None
        except OSError as error:
            raise DiskStoreError(f"the cache cannot be read: {error.strerror}") from error
        head, mac, text = data[: len(_HEADER)], data[len(_HEADER) : len(_HEADER) + 64], data[len(_HEADER) + 64 :]
        if head != _HEADER or not hmac.compare_digest(mac, _authentication_code(key, name, text)):
            raise DiskStoreError("a file in the cache is damaged, or another user wrote it")
        with contextlib.suppress(OSError):  # The folder may be read-only, or another process may have evicted the file.
            os.utime(path)
        return text.decode()

    def put(self, name: str, text: str) -> None:
        """Store a text under a name. Other processes see all of it or nothing.

        Raises:
            DiskStoreError: the text is too large, the folder cannot be written, or is not the user's.
        """
        data = text.encode()
        if len(data) + len(_HEADER) + 64 > MAX_FILE_BYTES:
            raise DiskStoreError("the artifact is too large for the cache")
        try:
            self._make_folder()
            self._write(self.folder / name, _HEADER + _authentication_code(self._key(), name, data) + data)
            self._evict_oldest()
        except OSError as error:
            raise DiskStoreError(f"the cache cannot be written: {error.strerror}") from error

    @contextlib.contextmanager
    def claim(self, name: str) -> Iterator[None]:
        """Let one process at a time make the text with this name; the others wait, then find it.

        The claim ends with the process that holds it. If it cannot be obtained in time, the process goes on without it,
        and the text is made twice. Names with the same first digits share one lock file, so few files are needed.
        """
        handle = -1
        with contextlib.suppress(OSError, DiskStoreError):
            self._make_folder()
            flags = os.O_RDWR | os.O_CREAT | getattr(os, "O_NOFOLLOW", 0)
            handle = os.open(self.folder / f"{_LOCK_PREFIX}{name[:2]}", flags, 0o600)
            _lock_file(handle)
        try:
            yield
        finally:
            if handle >= 0:
                _unlock_and_close(handle)

    def _make_folder(self) -> None:
        """Make the folder unless it exists.

        Raises:
            DiskStoreError: it, or its parent, is not the user's alone.
            OSError: it cannot be made.
        """
        self._check_parents()
        self.folder.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        self.folder.mkdir(mode=0o700, exist_ok=True)
        if not self._is_own(self.folder):
            raise DiskStoreError("other users can write to the cache folder")

    def _check_parents(self) -> None:
        """Check that nobody else can replace the folder, or receive what is written to it.

        Raises:
            DiskStoreError: the parent is a link, or it or the folder that holds it is another user's.
        """
        parent = self.folder.parent
        if parent.is_symlink():
            raise DiskStoreError(f"{parent.name} is a link")
        for folder in (parent, parent.parent.resolve()):
            if folder.exists() and not _is_safe_parent(folder.stat()):
                raise DiskStoreError(f"{folder.name} belongs to another user, or others can write to it")

    def _key(self) -> bytes:
        path = self.folder / "key"
        if not path.exists():
            temporary = self._write_temporary(secrets.token_bytes(32))
            try:
                os.link(temporary, path)  # The first process wins.
            except FileExistsError:
                pass
            finally:
                temporary.unlink()
        key = self._read(path, 32)
        if len(key) != 32 or stat.S_IMODE(path.lstat().st_mode) & 0o077:
            raise DiskStoreError("the key of the cache is damaged, or other users can read it")
        return key

    def _read(self, path: pathlib.Path, largest: int) -> bytes:
        status = path.lstat()
        if not _is_owned_by_user(status) or not stat.S_ISREG(status.st_mode) or status.st_size > largest:
            raise DiskStoreError("a file in the cache is damaged, or another user wrote it")
        return path.read_bytes()

    def _write(self, path: pathlib.Path, data: bytes) -> None:
        temporary = self._write_temporary(data)
        try:
            temporary.replace(path)
        except OSError:
            temporary.unlink(missing_ok=True)
            raise

    def _write_temporary(self, data: bytes) -> pathlib.Path:
        handle, name = tempfile.mkstemp(dir=self.folder, prefix=".")
        path = pathlib.Path(name)
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(data)
        except OSError:  # Delete the partial file: the disk may be full.
            path.unlink(missing_ok=True)
            raise
        return path

    def _evict_oldest(self) -> None:
        files = []
        for path in self.folder.iterdir():
            with contextlib.suppress(FileNotFoundError):  # Another process may evict files too.
                status = path.stat()
                if path.name == "key" or path.name.startswith(_LOCK_PREFIX):
                    continue
                is_being_written = (
                    path.name.startswith(".") and time.time() - status.st_mtime < _STALE_TEMP_FILE_SECONDS
                )
                if not is_being_written:
                    files.append((status.st_mtime, status.st_size, path))
        over = sum(size for _, size, _ in files) - MAX_STORE_BYTES
        for _, size, path in sorted(files):
            if over <= 0:
                return
            path.unlink(missing_ok=True)
            over -= size

    @staticmethod
    def _is_own(path: pathlib.Path) -> bool:
        """Return True if a file or folder exists and only the user may write to it."""
        try:
            return _is_owned_by_user(path.lstat())
        except FileNotFoundError:
            return False


def _lock_file(handle: int) -> None:
    """Lock an open file, or give up after ``MAX_WAIT_SECONDS``.

    Polls, because a lock on a network file system may never be answered.

    Raises:
        OSError: the file system has no locks.
    """
    until = time.monotonic() + MAX_WAIT_SECONDS
    while fcntl is not None and time.monotonic() < until:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            time.sleep(_POLL_SECONDS)
        else:
            return


def _unlock_and_close(handle: int) -> None:
    """End a claim. A child forked meanwhile shares the file: closing it is not enough."""
    if fcntl is not None:
        with contextlib.suppress(OSError):
            fcntl.flock(handle, fcntl.LOCK_UN)
    os.close(handle)


def _is_safe_parent(status: os.stat_result) -> bool:
    """Return True if only the user, or the system, can replace what a folder holds.

    A group that can write is accepted: on many systems each user has a group of their own.
    """
    is_open = status.st_mode & stat.S_IWOTH and not status.st_mode & stat.S_ISVTX
    return not hasattr(os, "geteuid") or (status.st_uid in (os.geteuid(), 0) and not is_open)


def _is_owned_by_user(status: os.stat_result) -> bool:
    """Return True if the user owns this, nobody else may write to it, and it is no symlink."""
    if stat.S_ISLNK(status.st_mode) or (hasattr(os, "geteuid") and status.st_uid != os.geteuid()):
        return False
    return os.name == "nt" or not status.st_mode & 0o022


def _authentication_code(key: bytes, name: str, text: bytes) -> bytes:
    return hmac.new(key, name.encode() + b"\n" + text, hashlib.sha256).hexdigest().encode()
