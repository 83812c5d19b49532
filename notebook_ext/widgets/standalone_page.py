"""Writes the explorer as one standalone HTML file, for sessions of any size.

Parts are compressed and written one by one; the browser decompresses a part when its view opens.
"""

from __future__ import annotations

import base64
import hashlib
import itertools
import json
import os
import tempfile
import zlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
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
from notebook_ext.views.search_index import MAX_ROWS, IndexPart, index_part, join_index
from notebook_ext.widgets.page_template import head_html, module_html, script_safe_json

COMPRESSION_LEVEL = 4
"""Compression level of zlib: level 6 takes twice its time for a tenth less output."""
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
    model = {"overview": overview(session, others, name), "parts": initial_parts(session, view), "view": view}
    data = script_safe_json(model)
    stream.write(f'<script type="application/json" id="data">{data}</script>\n'.encode())
    offsets: dict[str, int] = {}
    count = 0
    packer = _PartPacker(session)
    others_parts = (packer.pack(part) for part in comparison_parts(session, others, name))
    for part in itertools.chain(_packed_parts(packer, progress), others_parts):
        if not part.same_as:
            stream.write(b'<script type="text/plain" id="p%d">%s</script>\n' % (count, part.packed))
            count += 1
        offsets[part.key] = offsets[part.same_as] if part.same_as else count - 1
    stream.write(f'<script type="application/json" id="index">{script_safe_json(offsets)}</script>\n'.encode())
    stream.write(module_html().encode())


@dataclass(frozen=True, slots=True)
class _PackedPart:
    """A compressed part, or the key of an equal part that was yielded before it."""

    key: str
    packed: bytes
    same_as: str = ""


class _PartPacker:
    """Builds and compresses parts in one process; of equal parts only the first one.

    The search index has rows of each compilation, collected while the compilation's graphs are parsed.
    """

    def __init__(self, session: Session) -> None:
        self.index: dict[int, IndexPart] = {}
        self.groups = _key_groups(session)
        self._session = session
        self._row_counts: Counter[str] = Counter()
        self._keys: dict[bytes, str] = {}

    def pack(self, part: tuple[str, Any]) -> _PackedPart:
        """Compress a part that is unlike those before it."""
        key, value = part
        plain = json.dumps(value, ensure_ascii=True, separators=(",", ":")).encode()
        same_as = self._keys.setdefault(hashlib.blake2b(plain, digest_size=16).digest(), key)
        if same_as != key:
            return _PackedPart(key, b"", same_as)
        return _PackedPart(key, base64.b64encode(zlib.compress(plain, COMPRESSION_LEVEL)))

    def pack_groups(self, numbers: Iterable[int], progress: ProgressCallback | None = None) -> Iterator[_PackedPart]:
        """Yield the parts of groups of keys, and collect their part of the index."""
        for number in numbers:
            yield from map(self.pack, parts(self._session, self.groups[number]))
            if number:
                self._add_to_index(number, index_part(self._session, self._session.compilations[number - 1]))
            if progress is not None:
                progress(number + 1, len(self.groups))

    def _add_to_index(self, number: int, part: IndexPart) -> None:
        """Add the rows of one compilation that may be among the first ``MAX_ROWS``, kind by kind."""
        left = MAX_ROWS + 1
        for kind in ("functions", "breaks", "guards", "kernels", "nodes"):
            left -= self._row_counts[kind]
            rows = list(itertools.islice(getattr(part, kind), max(0, left)))
            setattr(part, kind, rows)
            self._row_counts[kind] += len(rows)
            left -= len(rows)
        self.index[number] = part

    def finish_index(self) -> _PackedPart:
        """Return the index of all compilations."""
        return self.pack(("index", join_index([self.index[number] for number in sorted(self.index)])))


def _packed_parts(packer: _PartPacker, progress: ProgressCallback | None) -> Iterator[_PackedPart]:
    numbers = range(len(packer.groups))
    if len(numbers) <= MIN_COMPILATIONS_TO_FORK or not hasattr(os, "fork") or (os.cpu_count() or 1) < 2:
        yield from packer.pack_groups(numbers, progress)
    else:
        yield from _pack_in_two_processes(packer, numbers, progress)
    yield packer.finish_index()


def _pack_in_two_processes(
    packer: _PartPacker, numbers: Sequence[int], progress: ProgressCallback | None
) -> Iterator[_PackedPart]:
    with tempfile.TemporaryFile() as queue, tempfile.TemporaryFile() as other:
        queue.write(b"".join(number.to_bytes(4) for number in numbers))
        queue.flush()
        queue.seek(0)
        child = fork_process()
        if child == 0:
            _pack_in_child(packer, queue, other)
        done: list[int] = []
        yield from packer.pack_groups(_take_numbers(queue, done), progress)
        _, status = os.waitpid(child, 0)
        if status:  # The child failed: do its work here, so that its error is raised.
            yield from packer.pack_groups(sorted({*numbers} - {*done}), progress)
            return
        other.seek(0)
        while line := other.readline():
            key, same_as, packed = line.rstrip(b"\n").split(b"\t")
            if not key:
                packer.index |= {int(n): IndexPart.from_json(p) for n, p in json.loads(packed).items()}
                return
            yield _PackedPart(key.decode(), packed, same_as.decode())


def _take_numbers(queue: BinaryIO, taken: list[int]) -> Iterator[int]:
    """Yield the next numbers of a file that a forked process reads too, and note them.

    The two processes share the file's position: each number is read by one of them.
    """
    while len(number := os.read(queue.fileno(), 4)) == 4:
        taken.append(int.from_bytes(number))
        yield taken[-1]


def _pack_in_child(packer: _PartPacker, queue: BinaryIO, file: BinaryIO) -> None:
    status = 1
    try:
        file.writelines(
            b"%s\t%s\t%s\n" % (part.key.encode(), part.same_as.encode(), part.packed)
            for part in packer.pack_groups(_take_numbers(queue, []))
        )
        index = {number: part.to_json() for number, part in packer.index.items()}
        file.write(b"\t\t%s\n" % json.dumps(index).encode())
        file.flush()
        status = 0
    finally:
        os._exit(status)


def _key_groups(session: Session) -> list[list[str]]:
    """Return groups of keys: those of the whole session, then those of each compilation."""
    texts: dict[str, list[str]] = {}
    for key in artifact_keys(session):
        texts.setdefault(key.split("|")[1], []).append(key)
    # The page begins with Home; the index is last.
    whole = [*(key for key in session_keys() if key not in ("home", "index")), *texts.get("", ())]
    return [whole, *([*entry_keys(c), *texts.get(c.id, ())] for c in session.compilations)]
