"""Reader of sessions that the ranks of a program saved: digests by compile id."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from engine.observe.json_values import as_list, as_number, as_object, as_text
from engine.observe.ranks.rank_contents import RankContents, collectives_of, is_tensor_text, normalized_digest
from engine.records.base import RecordError
from engine.records.ranks.collectives import rank_free_text

_NODE = ("op", "text", "shape", "stride", "dtype")
_GUARD = ("source", "kind", "expected")


def read_rank_session(path: Path, rank: int) -> RankContents:
    """Return the contents of a saved session.

    Raises:
        RecordError: the file is no saved session, or is cut.
    """
    try:
        data = json.loads(path.read_bytes())
    except (ValueError, RecursionError) as error:
        raise RecordError(f"{path.name} is not a saved session, or was cut off: {error}") from error
    if not as_list(as_object(data).get("frames")) and "version" not in as_object(data):
        raise RecordError(f"{path.name} is JSON, but not a saved session.")
    contents = RankContents(rank, path, as_text(as_object(data.get("versions")).get("torch")))
    contents.start = float(as_number(data.get("started_at")) or 0.0)
    contents.end = contents.start + float(as_number(data.get("seconds")) or 0.0)
    frames = {f.get("id"): _text(f, "name", "first_line") for f in _objects(data, "frames")}
    for compilation in _objects(data, "compilations"):
        _add_compilation(contents, compilation, frames.get(compilation.get("frame"), ""))
    _add_calls(contents, data)
    return contents


def _objects(data: Any, key: str) -> Iterator[Any]:
    """Yield the JSON objects under a key; other items are skipped."""
    value = as_object(data).get(key)
    yield from filter(None, map(as_object, as_list(value)))


def _text(value: Any, *keys: str) -> str:
    return json.dumps([as_object(value).get(key) for key in keys])


def _add_compilation(contents: RankContents, data: Any, frame: str) -> None:
    compilation = as_text(data.get("id"))
    trace, guards = as_object(data.get("trace")), as_object(data.get("guards"))
    tensors = {k: t for k, t in as_object(data.get("inputs")).items() if is_tensor_text(as_text(t))}
    facts = [("compile ids", f"{frame} {data.get('cause')}"), ("tensor metadata", json.dumps(tensors))]
    facts += [("graph breaks", _text(b, "title", "context")) for b in _objects(trace, "breaks")]
    facts += [("failures", _text(f, "sentence")) for f in _objects(data, "failures")]
    facts += [("cache outcomes", _text(d, "cache", "outcome")) for d in _objects(data, "disk_caches")]
    facts += [("kernels", _text(k, "name", "text")) for k in _objects(data, "kernels")]
    facts.append(("guards", "\n".join(_text(g, *_GUARD) for g in _objects(guards, "guards"))))
    meshes = (as_object(g.get("mesh")) for g in _objects(data, "graphs"))
    groups = {as_text(name): as_text(dim) for m in meshes for name, dim in as_list(as_object(m).get("groups"))}
    for graph in _objects(data, "graphs"):
        nodes = list(_objects(graph, "nodes"))
        if groups:
            nodes = [{**n, "text": rank_free_text(as_text(n.get("text")), groups)} for n in nodes]
        facts.append(("graphs", f"{graph.get('stage')} " + "\n".join(_text(n, *_NODE) for n in nodes)))
        if calls := collectives_of("\n".join(as_text(n.get("text")) for n in nodes).encode(errors="replace")):
            facts.append(("collective order", f"{graph.get('stage')} {calls}"))
            contents.collectives.setdefault((compilation, "forward"), calls)
    for aspect, text in facts:
        contents.add(compilation, aspect, normalized_digest(text.encode(errors="replace"), aspect, contents.rank))


def _add_calls(contents: RankContents, data: Any) -> None:
    """Add when each call was ready to run: before a hit, after a compilation."""
    counts: Counter[str] = Counter()
    for call in _objects(data, "calls"):
        entry, start = as_text(call.get("entry")), as_number(call.get("start"))
        if entry and start and contents.start:
            counts[entry] += 1
            contents.ready[entry, f"call {counts[entry]}"] = contents.start + start
