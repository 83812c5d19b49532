"""Lazy records: large texts are read from the log on access.

A trace of a gigabyte becomes a session of a few megabytes. Each class is a subclass of its record, equal
in fields and JSON; the text and what is parsed from it are read on each access. What takes the
place of a record's fields stands in a base that is no record.
"""

from __future__ import annotations

import dataclasses
import functools
import re
from collections.abc import Callable, Collection
from typing import Any, cast

from engine.observe.parse_graph import parse_nodes
from engine.observe.parse_messages import PathResolver, parse_guards
from engine.observe.trace_files import Payload
from engine.records.graph import GraphRecord, NodeRecord
from engine.records.guards import GuardRecord, GuardsRecord
from engine.records.kernels import KernelRecord
from engine.records.lowering import ExternCall, LoweringRecord
from engine.records.runtime import ArtifactRecord

CACHE_SIZE = 24
"""Maximum number of parsed graphs, and of parsed guard trees, in the cache."""

_STATEMENT_BELOW_COMMENT = re.compile(r"\n( {8,9}# File: .*)\n {8}(?!return\b)\w.*")


@functools.lru_cache(maxsize=CACHE_SIZE)
def _nodes(payload: Payload, prefix: str, compilation: str) -> tuple[NodeRecord, ...]:
    return parse_nodes(payload.text(), prefix, compilation)


@functools.lru_cache(maxsize=CACHE_SIZE)
def _guards(payload: Payload, resolve: PathResolver) -> tuple[GuardRecord, ...]:
    return parse_guards(payload.text(), resolve).guards


class _Lazy:
    """Base of records whose text is read on access. Copied and pickled as plain records."""

    __slots__ = ()
    payload: Payload

    @property
    def text(self) -> str:
        """The text as torch printed it."""
        return self.payload.text()

    def __reduce__(self) -> Any:
        kind, record = cast("Any", type(self).__base__), cast("Any", self)
        return kind.from_dict, (record.to_dict(),)


class _LazyNodes(_Lazy):
    """Nodes that are parsed on access."""

    __slots__ = ()
    _compilation: str
    _prefix: str

    @property
    def nodes(self) -> tuple[NodeRecord, ...]:
        """The graph's nodes, as far as the text can be parsed."""
        return _nodes(self.payload, self._prefix, self._compilation)

    @property
    def nodes_by_source(self) -> tuple[NodeRecord, ...]:
        """The first node of each source line, without inputs; the rest is not parsed."""
        first: dict[str, str] = {}
        for match in _STATEMENT_BELOW_COMMENT.finditer(self.text):
            first.setdefault(match[1], match[0])
        return parse_nodes("".join(("    def forward(self):", *first.values())), self._prefix, self._compilation)


class LazyGraph(_LazyNodes, GraphRecord):
    """A graph whose nodes are parsed on access."""

    __slots__ = ("_compilation", "_prefix", "payload")

    def __init__(self, id: str, stage: str, title: str, payload: Payload, prefix: str, compilation: str) -> None:
        _set_fields(
            self, id=id, stage=stage, title=title, passes=(), mesh=None, digest="", payload=payload, _prefix=prefix, _compilation=compilation,
        )  # fmt: skip

    def find_nodes(self, ids: Collection[str]) -> list[NodeRecord]:
        """Return the nodes with these ids; the text is parsed only if it may have some."""
        start = f"{self._prefix}:{self._compilation}:"
        return super().find_nodes(ids) if any(i.startswith(start) for i in ids) else []


class _LazyTree(_Lazy):
    """A printed guard tree that is parsed on access."""

    __slots__ = ()
    _resolve: PathResolver

    @property
    def check_text(self) -> str:
        """The tree as torch printed it."""
        return self.text.strip()

    @property
    def guards(self) -> tuple[GuardRecord, ...]:
        """The guards in printed order."""
        return _guards(self.payload, self._resolve)


class LazyGuards(_LazyTree, GuardsRecord):
    """Guards that are parsed from the printed tree on access."""

    __slots__ = ("_resolve", "payload")

    def __init__(self, payload: Payload, resolve: PathResolver) -> None:
        _set_fields(self, payload=payload, _resolve=resolve)


class LazyKernel(_Lazy, KernelRecord):
    """A kernel whose text is read on access."""

    __slots__ = ("payload",)

    def __init__(self, id: str, name: str, payload: Payload, language: str, fused_nodes: tuple[str, ...]) -> None:
        plain = KernelRecord(id, name, "", language=language, fused_nodes=fused_nodes)
        _copy_fields(self, plain, KernelRecord, without="text")
        _set_fields(self, payload=payload)


class _LazyWrappers(_Lazy):
    """Wrapper programs that are read on access."""

    __slots__ = ()
    payloads: tuple[Payload, ...]
    """The payloads with the wrapper programs."""
    _elide_kernels: Callable[[str], str]

    @property
    def wrapper_text(self) -> str:
        """The wrapper programs, forward before backward, with elided kernels."""
        return "\n\n".join(self._elide_kernels(p.text()) for p in self.payloads)


class LazyLowering(_LazyWrappers, LoweringRecord):
    """A lowering whose wrapper programs are read on access."""

    __slots__ = ("_elide_kernels", "payloads")

    def __init__(
        self, externs: tuple[ExternCall, ...], payloads: tuple[Payload, ...], shorten: Callable[[str], str]
    ) -> None:
        _copy_fields(self, LoweringRecord("", externs=externs), LoweringRecord, without="wrapper_text")
        _set_fields(self, payloads=payloads, _elide_kernels=shorten)


class LazyArtifact(_Lazy, ArtifactRecord):
    """An artifact whose text is read on access."""

    __slots__ = ("payload",)

    def __init__(self, name: str, payload: Payload) -> None:
        _set_fields(self, name=name, payload=payload)


def _set_fields(record: Any, **values: Any) -> None:
    for name, value in values.items():
        object.__setattr__(record, name, value)


def _copy_fields(record: Any, plain: Any, kind: Any, *, without: str) -> None:
    _set_fields(record, **{f.name: getattr(plain, f.name) for f in dataclasses.fields(kind) if f.name != without})
