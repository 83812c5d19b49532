"""Files that are written as a whole, or not at all."""

from __future__ import annotations

import contextlib
import os
import pathlib
import stat
from collections.abc import Iterator
from typing import BinaryIO


@contextlib.contextmanager
def replace_file(path: pathlib.Path) -> Iterator[BinaryIO]:
    """Open a file for writing; it takes its name when the block ends without an error.

    Until then, and after an error, the earlier file is there, and no partial one. A link stays a link.

    Raises:
        OSError: the folder cannot be written, or the disk is full.
    """
    if path.exists() and not path.is_file():  # a pipe or a device; a folder raises
        with path.open("wb") as stream:
            yield stream
        return
    path = path.resolve()
    partial = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        with partial.open("wb") as stream:
            yield stream
        if path.exists():
            partial.chmod(stat.S_IMODE(path.stat().st_mode))
        partial.replace(path)
    except BaseException:
        partial.unlink(missing_ok=True)
        raise
