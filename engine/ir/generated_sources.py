"""Source lines of the newest generated code, for tracebacks and profilers.

Imports no torch by itself: worker processes that compile kernels store sources too.
"""

from __future__ import annotations

import linecache
from collections.abc import MutableMapping
from typing import Any

MAX_FILES = 2_000
"""Files whose lines are stored: each compilation adds some kilobytes."""

_files: dict[str, None] = {}
"""The stored files, oldest first."""

line_tables: list[MutableMapping[str, Any]] = [_files, linecache.cache]
"""Tables that have an entry per stored file."""


def store_source(file: str, text: str) -> None:
    """Store the source of generated code under the name of its file."""
    # Without a modification time, linecache never looks for the file on disk.
    linecache.cache[file] = (len(text), None, text.splitlines(keepends=True), file)
    drop_oldest(file)


def drop_oldest(newest: str) -> None:
    """Note the newest file, and drop the lines of the oldest ones beyond the limit."""
    _files.pop(newest, None)
    _files[newest] = None
    while len(_files) > MAX_FILES:
        oldest = next(iter(_files))
        for table in line_tables:
            table.pop(oldest, None)
