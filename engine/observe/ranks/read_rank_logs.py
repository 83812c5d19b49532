"""Reader of the ``TORCH_TRACE`` logs of many ranks, as digests."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from engine.observe.event_names import CACHE_EVENT_PATTERN, FAILURE_EVENTS, GRAPH_EVENTS
from engine.observe.json_values import as_int, as_list, as_object, as_text
from engine.observe.log_reader import IntactPayloads, LogDamage, LogRecord, parse_json, read_log_records
from engine.observe.ranks.rank_contents import RankContents, collectives_of, normalized_digest, text_digest
from engine.observe.trace_events import TraceEvent, parse_event
from engine.observe.trace_files import BlockReader, TraceFile, open_decompressed

MAX_KNOWN_BYTES = 1 << 25
"""Maximum size of the cached lines in bytes; further lines are parsed each time."""
RANK_IN_NAME = re.compile(r"rank_?(\d{1,6})(?!\d)")
_RANK_IN_LOG = re.compile(rb'"rank": (\d{1,6})[,}]')
_END_BYTES = 1 << 16
_TRACED = (
    "compiled_autograd_graph", "dynamo_output_graph", "optimize_ddp_split_graph", "aot_joint_graph", "aot_inference_graph",
    "aot_forward_graph", "aot_backward_graph", "exported_program",
)  # fmt: skip
"""Graphs that are logged whether or not Inductor's caches hit."""
_TEXT_ASPECTS = {
    **{name: "graphs" if name in _TRACED else "kernels" for name in GRAPH_EVENTS},
    **dict.fromkeys(FAILURE_EVENTS, "failures"),
    "dynamo_graph_break_reason": "graph breaks",
    "dynamo_cpp_guards_str": "guards",
    "inductor_output_code": "kernels",
    "recompile_reasons": "compile ids",
    "inductor_collective_schedule": "collective schedule",
    "inductor_runtime_and_tensor_meta": "collective schedule",
}
_DESCRIBED = ("dtype", "size", "stride", "requires_grad", "is_parameter", "layout", "is_view")
_SKIPPED = tuple(
    f'{{"{kind}": '.encode()
    for kind in ("chromium_event", "create_symbol", "describe_source", "describe_storage", "guard_added_fast")
)
"""Starts of records in which ranks are not compared, most of a log's."""
_PHASES = {"aot_backward_graph": "backward", "bwd_compilation_metrics": "backward"}


def rank_of(path: Path) -> int | None:
    """Return the rank of a log by its name, or by its last records; None if it has none.

    A process that logs before it joins its group has no rank in the name of its file.
    """
    if (match := RANK_IN_NAME.search(path.name)) is not None:
        return int(match[1])
    with path.open("rb") as stream:
        stream.seek(max(0, path.stat().st_size - _END_BYTES))
        ranks = _RANK_IN_LOG.findall(stream.read())
    return int(ranks[-1]) if ranks else None


class RankLogReader:
    """Reads logs one after another; caches the digests of texts by torch's own digest."""

    def __init__(self, seen: Callable[[int], None] = lambda _: None) -> None:
        self._seen = seen
        self._texts: dict[tuple[str, str, int], tuple[str, tuple[str, ...]]] = {}
        self._strings: dict[int, str] = {}
        self._intact = IntactPayloads()
        self._rank = 0
        self._lines = ParsedLineCache()

    def read(self, path: Path, rank: int) -> RankContents:
        """Return the contents of one log."""
        contents, damage = RankContents(rank, path), LogDamage()
        self._strings = {}
        self._lines.start_log(rank)
        self._rank = rank
        stream, is_whole = open_decompressed(path)
        with stream:
            file = TraceFile(stream)
        last: LogRecord | None = None
        lines = self._lines
        for line in read_log_records(BlockReader(file), damage, self._seen, _SKIPPED, self._intact, lines.parse):
            last = line
            contents.start = contents.start or line.seconds
            if not line.metadata:
                continue
            if "str" in line.metadata:
                self._add_string(line.metadata["str"])
            elif (event := lines.event(line.metadata)) is not None:
                self._add(contents, event, line)
        contents.end = last.seconds if last is not None else 0.0
        contents.damage = (*damage.messages(), *(() if is_whole else ("its compressed data is cut or damaged",)))
        return contents

    def _add_string(self, value: Any) -> None:
        values = as_list(value)
        if len(values) == 2 and (number := as_int(values[1])) is not None:
            self._strings[number] = as_text(values[0])

    def _add(self, contents: RankContents, event: TraceEvent, line: LogRecord) -> None:
        name, compilation = event.name, event.compilation
        if name == "torch_version":
            contents.version = _version(line.payload)
        if not compilation:
            return
        if name == "dynamo_start":
            contents.add(compilation, "compile ids", self._frame(event))
            contents.unfinished = compilation
        elif name in ("compilation_metrics", "bwd_compilation_metrics"):
            contents.version = contents.version or as_text(event.facts.get("pytorch_version"))
            contents.ready[compilation, _PHASES.get(name, "forward")] = line.seconds
            contents.unfinished = "" if contents.unfinished == compilation else contents.unfinished
        else:
            self._add_facts(contents, event, line)

    def _add_facts(self, contents: RankContents, event: TraceEvent, line: LogRecord) -> None:
        """Add what a line says by itself: its facts are read once for all ranks."""
        facts = self._lines.facts(line.metadata, line.length)
        if facts is None:
            facts = self._facts_of_event(event, line)
            if event.digest or not line.length:
                self._lines.add_facts(line.metadata, line.length, facts)
        if facts.aspects:
            contents.compilations.setdefault(event.compilation, []).extend(facts.aspects)
        if facts.collectives:
            phase = _PHASES.get(event.name, "forward")
            contents.collectives.setdefault((event.compilation, phase), facts.collectives)

    def _facts_of_event(self, event: TraceEvent, line: LogRecord) -> ParsedLineFacts:
        name = event.name
        if name == "describe_tensor":
            facts = [event.facts.get(key) for key in _DESCRIBED]
            device = as_text(event.facts.get("device")).partition("index")[0]
            return ParsedLineFacts((("tensor metadata", text_digest(f"{facts} {device}".encode())),))
        if CACHE_EVENT_PATTERN.match(name):
            return ParsedLineFacts((("cache outcomes", name),))
        aspect = _TEXT_ASPECTS.get(name)
        if aspect is None:
            return ParsedLineFacts()
        digest, collectives = self._digest(event, line, aspect)
        order = (("collective order", f"{name} {collectives}"),) if collectives else ()
        return ParsedLineFacts(((aspect, f"{name} {digest}"), *order), collectives)

    def _frame(self, event: TraceEvent) -> str:
        """Return function, file and line of the compiled frame, or of the lines that called it."""
        frames = map(as_object, as_list(event.facts.get("stack")))
        names = (
            (f.get("name"), self._strings.get(as_int(f.get("filename")) or 0, "").rpartition("/")[2], f.get("line"))
            for f in frames
        )
        return text_digest(repr(list(names)).encode(errors="replace"))

    def _digest(self, event: TraceEvent, line: LogRecord, aspect: str) -> tuple[str, tuple[str, ...]]:
        key = (aspect, event.digest, line.length)
        if not event.digest or key not in self._texts:
            text = line.payload or repr(event.metadata).encode(errors="replace")
            calls = collectives_of(text) if aspect == "graphs" else ()
            self._texts[key] = normalized_digest(text, aspect, self._rank), calls
        return self._texts[key]


def _version(payload: bytes) -> str:
    try:
        return as_text(as_object(json.loads(payload)).get("pytorch_version"))
    except (ValueError, RecursionError):
        return ""


class ParsedLineFacts(NamedTuple):
    """Facts of one line to compare between ranks: digests by aspect, a graph's collectives."""

    aspects: tuple[tuple[str, str], ...] = ()
    collectives: tuple[str, ...] = ()


class ParsedLineCache:
    """Parsed lines by their JSON without the rank, and the facts that were read from them.

    The cache holds the lines, so the identity of a parsed line is its key.
    """

    def __init__(self) -> None:
        self._lines: dict[bytes, dict[str, Any] | None] = {}
        self._events: dict[int, TraceEvent | None] = {}
        self._facts: dict[tuple[int, int], ParsedLineFacts] = {}
        self._bytes = 0
        self._rank = b""

    def start_log(self, rank: int) -> None:
        """Begin a rank's log: lines are cached without its number."""
        self._rank = b', "rank": %d' % rank

    def parse(self, text: bytes) -> dict[str, Any] | None:
        """Return the object that a line's JSON describes; None if it is damaged."""
        key = text.replace(self._rank + b",", b",").replace(self._rank + b"}", b"}")
        try:
            return self._lines[key]
        except KeyError:
            metadata = parse_json(text)
        self._bytes += len(key)
        if self._bytes <= MAX_KNOWN_BYTES:
            self._lines[key] = metadata
            if metadata is not None:
                self._events[id(metadata)] = parse_event(metadata, None)
        return metadata

    def event(self, metadata: dict[str, Any]) -> TraceEvent | None:
        """Return the event of a parsed line; None if it has none."""
        try:
            return self._events[id(metadata)]
        except KeyError:
            return parse_event(metadata, None)

    def facts(self, metadata: dict[str, Any], length: int) -> ParsedLineFacts | None:
        """Return the facts of a line whose payload has this length; None if they are not known."""
        return self._facts.get((id(metadata), length))

    def add_facts(self, metadata: dict[str, Any], length: int, facts: ParsedLineFacts) -> None:
        """Note the facts of a line, if it is held."""
        if id(metadata) in self._events:
            self._facts[id(metadata), length] = facts
