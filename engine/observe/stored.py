"""Records of large texts that are read when someone looks: a trace of a gigabyte makes a session of a few megabytes.

Each is its record's subclass: equal in fields and in JSON, but text, and what is read out of it, are fetched anew on each look.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

from engine.observe.graph_text import read_nodes
from engine.observe.messages import Resolve, read_guards
from engine.observe.payloads import Payload
from engine.records.graph import GraphRecord, NodeRecord
from engine.records.guards import GuardRecord, GuardsRecord
from engine.records.kernels import KernelRecord
from engine.records.lowering import ExternCall, LoweringRecord
from engine.records.runtime import TextRecord

REMEMBERED = 24
"""Graphs, and sets of guards, that are kept as read."""


def _plain(kind: Callable[[Any], Any], data: dict[str, Any]) -> Any:
    return kind(data)


@functools.lru_cache(maxsize=REMEMBERED)
def _nodes(payload: Payload, prefix: str, compilation: str) -> tuple[NodeRecord, ...]:
    return read_nodes(payload.text(), prefix, compilation)


@functools.lru_cache(maxsize=REMEMBERED)
def _guards(payload: Payload, resolve: Resolve) -> tuple[GuardRecord, ...]:
    return read_guards(payload.text(), resolve).guards


class StoredGraph(GraphRecord):
    """A graph whose nodes are read out of its text on demand."""

    __slots__ = ("_compilation", "_payload", "_prefix")
    _compilation: str
    _payload: Payload
    _prefix: str

    def __init__(self, id: str, stage: str, title: str, payload: Payload, prefix: str, compilation: str) -> None:
        _fill(
            self, id=id, stage=stage, title=title, passes=(), _payload=payload, _prefix=prefix, _compilation=compilation
        )

    @property
    def text(self) -> str:
        """The graph as torch printed it."""
        return self._payload.text()

    @property
    def nodes(self) -> tuple[NodeRecord, ...]:
        """Its nodes, as far as the text can be read."""
        return _nodes(self._payload, self._prefix, self._compilation)

    def __reduce__(self) -> Any:
        return _plain, (GraphRecord.from_dict, self.to_dict())


class StoredGuards(GuardsRecord):
    """Guards that are read out of the printed tree on demand."""

    __slots__ = ("_payload", "_resolve")
    _payload: Payload
    _resolve: Resolve

    def __init__(self, payload: Payload, resolve: Resolve) -> None:
        _fill(self, _payload=payload, _resolve=resolve)

    @property
    def check_text(self) -> str:
        """The tree as torch printed it."""
        return self._payload.text().strip()

    @property
    def guards(self) -> tuple[GuardRecord, ...]:
        """The guards in printed order."""
        return _guards(self._payload, self._resolve)

    def __reduce__(self) -> Any:
        return _plain, (GuardsRecord.from_dict, self.to_dict())


class StoredKernel(KernelRecord):
    """A kernel whose text is read on demand."""

    __slots__ = ("_payload",)
    _payload: Payload

    def __init__(self, id: str, name: str, payload: Payload, language: str, fused_nodes: tuple[str, ...]) -> None:
        plain = KernelRecord(id, name, "", language=language, fused_nodes=fused_nodes)
        _copy(self, plain, KernelRecord, without="text")
        _fill(self, _payload=payload)

    @property
    def text(self) -> str:
        """The kernel's own text."""
        return self._payload.text()

    @property
    def payload(self) -> Payload:
        """Where the text is."""
        return self._payload

    def __reduce__(self) -> Any:
        return _plain, (KernelRecord.from_dict, self.to_dict())


class StoredLowering(LoweringRecord):
    """A lowering whose wrapper program is read on demand."""

    __slots__ = ("_payloads", "_shorten")
    _payloads: tuple[Payload, ...]
    _shorten: Callable[[str], str]

    def __init__(
        self, externs: tuple[ExternCall, ...], payloads: tuple[Payload, ...], shorten: Callable[[str], str]
    ) -> None:
        _copy(self, LoweringRecord("", externs=externs), LoweringRecord, without="wrapper_text")
        _fill(self, _payloads=payloads, _shorten=shorten)

    @property
    def wrapper_text(self) -> str:
        """The programs around the kernels, forward before backward."""
        return "\n\n".join(self._shorten(p.text()) for p in self._payloads)

    @property
    def payloads(self) -> tuple[Payload, ...]:
        """Where the programs are."""
        return self._payloads

    def __reduce__(self) -> Any:
        return _plain, (LoweringRecord.from_dict, self.to_dict())


class StoredText(TextRecord):
    """A text that is read on demand."""

    __slots__ = ("_payload",)
    _payload: Payload

    def __init__(self, name: str, payload: Payload) -> None:
        _fill(self, name=name, _payload=payload)

    @property
    def text(self) -> str:
        """The text."""
        return self._payload.text()

    def __reduce__(self) -> Any:
        return _plain, (TextRecord.from_dict, self.to_dict())


def _fill(record: Any, **values: Any) -> None:
    """Set fields of a frozen record while it is made."""
    for name, value in values.items():
        object.__setattr__(record, name, value)


def _copy(record: Any, plain: Any, kind: Any, *, without: str) -> None:
    _fill(record, **{f.name: getattr(plain, f.name) for f in dataclasses.fields(kind) if f.name != without})
