"""The explorer as one HTML file for any size of session: its parts compressed, written one by one, unpacked by the browser when looked at."""

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
from notebook_ext.views.contents import text_keys
from notebook_ext.views.explorer import HERE, Others, beside, entry_keys, first_parts, overview, parts, whole_keys
from notebook_ext.views.private import private_note
from notebook_ext.widgets.page import head_html, module_html, script_safe

LEVEL = 6
"""Of compression: a sixth smaller than the fastest, for a sixth more time."""
WORTH_A_PROCESS = 2
"""From this many compilations on, another process makes half of the parts."""
_SHIM = """
const data = JSON.parse(document.getElementById("data").textContent);
const places = JSON.parse(document.getElementById("index").textContent);
async function unpack(place) {
  const bytes = Uint8Array.from(atob(document.getElementById("p" + place).textContent), (c) => c.charCodeAt(0));
  return new Response(new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate"))).json();
}
const model = pageModel(data);
model.send = (message) => {
  if (message.type !== "part") model.tell("msg:custom", { type: "say", text: "This page has no kernel: run the notebook for that." });
  else if (message.key in places) unpack(places[message.key]).then((found) => model.tell("msg:custom", { type: "part", key: message.key, data: found }));
};
"""

Progress = Callable[[int, int], None]
"""Told how many compilations are written, and how many there are."""


def write_page(
    session: Session,
    stream: BinaryIO,
    title: str,
    progress: Progress | None = None,
    view: str = "contents",
    others: Others | None = None,
    name: str = HERE,
) -> None:
    """Write the page that shows ``session``; it opens from disk, offline, in light or dark, and holds every part of every view.

    ``view`` is open at first. ``others`` are sessions to compare it with, by name; beside them it is called ``name``.
    """
    stream.write(head_html(title).encode())
    stream.write(f'<p class="private">{escape(private_note(session))}</p>\n'.encode())
    told = {"overview": overview(session, others, name), "parts": first_parts(session), "view": view}
    data = script_safe(told)
    stream.write(f'<script type="application/json" id="data">{data}</script>\n'.encode())
    places: dict[str, int] = {}
    for key, packed in itertools.chain(_packed(session, progress), map(_pressed, beside(session, others, name))):
        stream.write(b'<script type="text/plain" id="p%d">%s</script>\n' % (len(places), packed))
        places[key] = len(places)
    stream.write(f'<script type="application/json" id="index">{script_safe(places)}</script>\n'.encode())
    stream.write(module_html(_SHIM).encode())


def _packed(session: Session, progress: Progress | None) -> Iterator[tuple[str, bytes]]:
    groups = _groups(session)
    if len(session.compilations) < WORTH_A_PROCESS or not hasattr(os, "fork") or (os.cpu_count() or 1) < 2:
        yield from _pack(session, groups, progress)
        return
    with tempfile.TemporaryFile() as other:
        child = os.fork()
        if child == 0:
            _in_child(session, groups[1::2], other)
        yield from _pack(session, groups[::2], progress)
        _, status = os.waitpid(child, 0)
        if status:  # whatever went wrong there, here it shows
            yield from _pack(session, groups[1::2], progress)
            return
        other.seek(0)
        while line := other.readline():
            key, _, packed = line.rstrip(b"\n").rpartition(b"\t")
            yield key.decode(), packed


def _in_child(session: Session, groups: list[list[str]], file: BinaryIO) -> None:
    status = 1
    try:
        file.writelines(key.encode() + b"\t" + packed + b"\n" for key, packed in _pack(session, groups, None))
        file.flush()
        status = 0
    finally:
        os._exit(status)


def _groups(session: Session) -> list[list[str]]:
    """Keys that belong together: of the whole, and of each compilation."""
    texts: dict[str, list[str]] = {}
    for key in text_keys(session):
        texts.setdefault(key.split("|")[1], []).append(key)
    whole = [*whole_keys(), *texts.get("", ())]
    return [whole, *([*entry_keys(c), *texts.get(c.id, ())] for c in session.compilations)]


def _pack(session: Session, groups: Iterable[list[str]], progress: Progress | None) -> Iterator[tuple[str, bytes]]:
    wanted = list(groups)
    for number, keys in enumerate(wanted, 1):
        yield from map(_pressed, parts(session, keys))
        if progress is not None:
            progress(number, len(wanted))


def _pressed(part: tuple[str, Any]) -> tuple[str, bytes]:
    key, value = part
    plain = json.dumps(value, ensure_ascii=True, separators=(",", ":")).encode()
    return key, base64.b64encode(zlib.compress(plain, LEVEL))
