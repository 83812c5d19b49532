"""Cache of parsed log lines: a line that many ranks wrote is parsed once."""

from __future__ import annotations

from typing import Any, NamedTuple

from engine.observe.log_reader import parse_json
from engine.observe.trace_events import TraceEvent, parse_event

MAX_KNOWN_BYTES = 1 << 25
"""Maximum size of the cached lines in bytes; further lines are parsed each time."""


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
