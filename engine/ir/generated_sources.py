"""Source lines of the newest generated code, for tracebacks and profilers.

Imports no torch by itself: worker processes that compile kernels store sources too.
"""

from __future__ import annotations

import contextlib
import linecache
import sys
from collections.abc import Iterator
from itertools import islice
from typing import Any

__all__ = ["limit_graph_sources", "store_source"]

MAX_FILES = 2_000
"""Files whose lines are stored: each compilation adds some kilobytes."""

_files: dict[str, None] = {}
"""The stored files, oldest first."""


def store_source(file: str, text: str) -> None:
    """Store the source of generated code under the name of its file."""
    # Without a modification time, linecache never looks for the file on disk.
    linecache.cache[file] = (len(text), None, text.splitlines(keepends=True), file)
    _drop_oldest(file)


@contextlib.contextmanager
def limit_graph_sources() -> Iterator[None]:
    """Count the sources of graph modules that are made in the block.

    Those that the user makes outside it are never dropped.
    """
    graph_sources = _graph_sources()
    if graph_sources is None:
        yield
        return
    first = graph_sources.next_id
    try:
        yield
    finally:
        for file in tuple(islice(reversed(graph_sources.eval_cache), graph_sources.next_id - first)):
            _drop_oldest(file)


def _drop_oldest(newest: str) -> None:
    _files.pop(newest, None)
    _files[newest] = None
    while len(_files) > MAX_FILES:
        oldest = next(iter(_files))
        for table in (_files, linecache.cache, getattr(_graph_sources(), "eval_cache", {})):
            table.pop(oldest, None)


def _graph_sources() -> Any:
    """Return torch's table of graph sources, or None without it or without torch."""
    if "torch" not in sys.modules:
        return None
    from engine.torch_private.entries import Feature, why_off
    from engine.torch_private.fx import graph_sources

    return None if why_off(Feature.SOURCE_LIMIT) else graph_sources
