"""Writes the explorer as one standalone HTML file, for sessions of any size.

Parts are compressed and written one by one; the browser decompresses a part when its view opens.
"""

from __future__ import annotations

import base64
import itertools
import json
import os
import tempfile
import zlib
from collections.abc import Callable, Iterable, Iterator
from html import escape
from typing import Any, BinaryIO

from engine.records.session import Session
from engine.runtime.workers.fork import fork_process
from notebook_ext.views.compilations import artifact_keys
from notebook_ext.views.explorer_parts import (
    DEFAULT_NAME,
    OtherSessions,
    comparison_parts,
    entry_keys,
    initial_parts,
    overview,
    parts,
    session_keys,
)
from notebook_ext.views.privacy_note import privacy_note
from notebook_ext.widgets.page_template import head_html, module_html, script_safe_json

COMPRESSION_LEVEL = 6
"""Compression level of zlib.

Its output is a sixth smaller than that of the fastest level and takes a sixth longer.
"""
MIN_COMPILATIONS_TO_FORK = 2
"""Number of compilations from which a second process builds parts too."""

ProgressCallback = Callable[[int, int], None]
"""Callback with the number of compilations written and their total."""


def write_page(
    session: Session,
    stream: BinaryIO,
    title: str,
    progress: ProgressCallback | None = None,
    view: str = "compilations",
    others: OtherSessions | None = None,
    name: str = DEFAULT_NAME,
) -> None:
    """Write a page that shows every view of ``session``; it opens from disk and offline.

    The page has a light and a dark theme. ``view`` is the initial view. ``others`` are sessions by name for
    comparison; this session is called ``name`` there.
    """
    stream.write(head_html(title).encode(errors="replace"))
    note = escape(privacy_note(session, "This page"))
    stream.write(f'<p class="private">{note}</p>\n'.encode(errors="replace"))
    model = {"overview": overview(session, others, name), "parts": initial_parts(session), "view": view}
    data = script_safe_json(model)
    stream.write(f'<script type="application/json" id="data">{data}</script>\n'.encode())
    places: dict[str, int] = {}
    for key, packed in itertools.chain(
        _compressed_parts(session, progress), map(_compress_part, comparison_parts(session, others, name))
    ):
        stream.write(b'<script type="text/plain" id="p%d">%s</script>\n' % (len(places), packed))
        places[key] = len(places)
    stream.write(f'<script type="application/json" id="index">{script_safe_json(places)}</script>\n'.encode())
    stream.write(module_html().encode())


def _compressed_parts(session: Session, progress: ProgressCallback | None) -> Iterator[tuple[str, bytes]]:
    groups = _key_groups(session)
    numbers = range(len(groups))
    if len(session.compilations) < MIN_COMPILATIONS_TO_FORK or not hasattr(os, "fork") or (os.cpu_count() or 1) < 2:
        yield from _compress_groups(session, groups, numbers, progress)
        return
    with tempfile.TemporaryFile() as queue, tempfile.TemporaryFile() as other:
        queue.write(b"".join(number.to_bytes(4) for number in numbers))
        queue.flush()
        queue.seek(0)
        child = fork_process()
        if child == 0:
            _compress_in_child(session, groups, queue, other)
        done: list[int] = []
        yield from _compress_groups(session, groups, _take_numbers(queue, done), progress)
        _, status = os.waitpid(child, 0)
        if status:  # If the child failed, do its work here: an error then shows.
            yield from _compress_groups(session, groups, sorted({*numbers} - {*done}), progress)
            return
        other.seek(0)
        while line := other.readline():
            key, _, packed = line.rstrip(b"\n").rpartition(b"\t")
            yield key.decode(), packed


def _take_numbers(queue: BinaryIO, taken: list[int]) -> Iterator[int]:
    """Yield the next numbers of a file that a forked process reads too, and note them.

    The two processes share the file's position: each number is read by one of them.
    """
    while len(number := os.read(queue.fileno(), 4)) == 4:
        taken.append(int.from_bytes(number))
        yield taken[-1]


def _compress_in_child(session: Session, groups: list[list[str]], queue: BinaryIO, file: BinaryIO) -> None:
    status = 1
    try:
        made = _compress_groups(session, groups, _take_numbers(queue, []), None)
        file.writelines(key.encode() + b"\t" + packed + b"\n" for key, packed in made)
        file.flush()
        status = 0
    finally:
        os._exit(status)


def _key_groups(session: Session) -> list[list[str]]:
    """Return groups of keys: those of the whole session, then those of each compilation."""
    texts: dict[str, list[str]] = {}
    for key in artifact_keys(session):
        texts.setdefault(key.split("|")[1], []).append(key)
    whole = [*session_keys(), *texts.get("", ())]
    return [whole, *([*entry_keys(c), *texts.get(c.id, ())] for c in session.compilations)]


def _compress_groups(
    session: Session, groups: list[list[str]], numbers: Iterable[int], progress: ProgressCallback | None
) -> Iterator[tuple[str, bytes]]:
    for number in numbers:
        yield from map(_compress_part, parts(session, groups[number]))
        if progress is not None:
            progress(number + 1, len(groups))


def _compress_part(part: tuple[str, Any]) -> tuple[str, bytes]:
    key, value = part
    plain = json.dumps(value, ensure_ascii=True, separators=(",", ":")).encode()
    return key, base64.b64encode(zlib.compress(plain, COMPRESSION_LEVEL))
