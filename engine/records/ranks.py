"""Ranks of one program: groups of equals, first divergences, and their collectives."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from engine.records.base import Record
from engine.records.bytecode import Span
from engine.records.graph import GraphRecord, MeshRecord, NodeRecord

if TYPE_CHECKING:
    from engine.records.session import CompilationRecord, Session

COLLECTIVE = re.compile(r"\b_c10d_functional\.(?!wait_tensor|_wrap)(\w+)")
_GROUP = re.compile(r"'([^']*)'\)$")
_CHUNK = re.compile(r"\bgetitem(_\d+)?\b")
_TAKEN_CHUNK = re.compile(r"^(getitem(?:_\d+)? = \w+)\[\d+\]$")
CALLED = frozenset(("redistribute", "full_tensor", "from_local", "to_local", "local_tensor"))
"""Methods of DTensor by which a program asks for a redistribution."""
ASPECTS = (
    "collective order", "compile ids", "graph breaks", "failures", "graphs", "tensor metadata", "guards", "cache outcomes",
    "collective schedule", "kernels",
)  # fmt: skip
"""Aspects by which ranks are compared.

Of several that differ in one compilation, the first one names the divergence.
"""
AFTER_CACHES = ("collective schedule", "kernels")
"""Aspects that a compiler logs only where its caches miss."""


@dataclass(frozen=True, slots=True)
class RankGroup(Record):
    """Ranks that are equal in all aspects, and the name of the one file that is read for them."""

    ranks: tuple[int, ...]
    file: str


@dataclass(frozen=True, slots=True)
class AspectGroups(Record):
    """Ranks grouped by one aspect alone, the largest group first."""

    aspect: str
    groups: tuple[tuple[int, ...], ...]


@dataclass(frozen=True, slots=True)
class RankDivergence(Record):
    """First difference of a group of ranks from the largest group, whose ranks are ``others``.

    ``compilation``: compile id from which on they differ. ``aspect``: what differs there; ``aspects``: all that
    differs in the whole recording. ``here`` and ``there``: what these ranks and the others have. ``span``: line of
    user code, if known.
    """

    ranks: tuple[int, ...]
    others: tuple[int, ...]
    compilation: str
    aspect: str
    aspects: tuple[str, ...]
    here: str = ""
    there: str = ""
    span: Span | None = None


@dataclass(frozen=True, slots=True)
class RankArrivals(Record):
    """Times at which each rank could run a program, in the order of ``RankGroups.ranks``.

    The others wait for the last rank at the program's first collective. ``what``: "forward" or "backward" of a
    compilation, or the number of a call. ``arrivals``: seconds after the first rank; None if unknown.
    """

    compilation: str
    what: str
    collectives: tuple[str, ...]
    last: int
    waited: float
    """Seconds that the first rank waited for the last one."""
    arrivals: tuple[float | None, ...] = ()


@dataclass(frozen=True, slots=True)
class RankGroups(Record):
    """Ranks of one program in groups of equals, the largest group first."""

    ranks: tuple[int, ...]
    groups: tuple[RankGroup, ...]
    aspects: tuple[AspectGroups, ...] = ()
    divergences: tuple[RankDivergence, ...] = ()
    arrivals: tuple[RankArrivals, ...] = ()
    missing: tuple[int, ...] = ()
    """Ranks of the program without a recording."""
    problems: tuple[str, ...] = ()
    """Sentences about logs that are cut, of another torch version, or of another run."""


def format_ranks(ranks: tuple[int, ...]) -> str:
    """Return rank numbers as text, with ranges: ``ranks 0-3, 7``."""
    parts: list[list[int]] = []
    for rank in sorted(ranks):
        if parts and rank == parts[-1][-1] + 1:
            parts[-1] = [parts[-1][0], rank]
        else:
            parts.append([rank])
    return f"{'rank' if len(ranks) == 1 else 'ranks'} " + ", ".join("-".join(map(str, p)) for p in parts)


def divergence_title(found: RankDivergence) -> str:
    """Return a divergence as one sentence without a final period."""
    who = format_ranks(found.ranks)
    verb = "differs" if len(found.ranks) == 1 else "differ"
    others = format_ranks(found.others) if len(found.others) == 1 else f"{len(found.others):,} others"
    return f"{who[:1].upper()}{who[1:]} {verb} from {others} from compile id {found.compilation} on: {found.aspect}"


def rank_free_text(text: str, groups: Mapping[str, str]) -> str:
    """Return a node's text without what differs between equal ranks of a mesh.

    A group is named by its dimension; which chunk of a split a rank takes is left out.
    """
    if "_c10d_functional" in text:
        return _GROUP.sub(lambda m: f"'{groups.get(m[1], m[1])}')", text)
    return _CHUNK.sub("getitem", _TAKEN_CHUNK.sub(r"\1[_]", text))


@dataclass(frozen=True, slots=True)
class GraphCollective:
    """One collective of a compiled graph.

    ``bytes``: size of the larger of input and output on this rank; 0 if unknown. ``origin``: traced node that it
    comes from. ``is_hidden``: DTensor inserts it, because an operator cannot run with the placements of its inputs.
    """

    kind: str
    dtype: str
    bytes: int
    group: str
    stage: str
    compilation: str
    span: Span | None
    origin: NodeRecord | None
    inputs: tuple[NodeRecord, ...]
    is_hidden: bool


def recorded_mesh(session: Session) -> MeshRecord | None:
    """Return the largest mesh of a session's graphs, those of DTensors first."""
    found = [g.mesh for c in session.compilations for g in c.graphs if g.mesh is not None]
    return max(found, key=lambda m: (bool(m.groups), len(m.ranks)), default=None)


def recorded_collectives(session: Session) -> list[GraphCollective]:
    """Return the collectives of all compiled graphs, in order."""
    return [found for c in session.compilations for g in _final_graphs(c) for found in _collectives(c, g)]


def _final_graphs(compilation: CompilationRecord) -> list[GraphRecord]:
    """Return the ATen graphs that run; the traced graph if there are none."""
    found = [g for g in compilation.graphs if g.stage in ("aten", "forward", "backward")]
    return found or list(compilation.graphs[:1])


def _collectives(compilation: CompilationRecord, graph: GraphRecord) -> Iterator[GraphCollective]:
    traced = {n.id: n for g in compilation.graphs[:1] for n in g.nodes}
    groups = {k: v for g in compilation.graphs if g.mesh is not None for k, v in g.mesh.groups}
    own = {n.id: n for n in graph.nodes}
    for node in graph.nodes:
        if (call := COLLECTIVE.search(node.target)) is None:
            continue
        origin = next((traced[o] for o in node.origins if o in traced), None)
        inputs = tuple(traced[i] for i in origin.inputs if i in traced) if origin else ()
        is_placed = origin is not None and any(n.placements for n in (origin, *inputs))
        read = [n for i in node.inputs if (n := own.get(i)) is not None]
        name = _GROUP.search(node.text)
        group = name[1] if name else ""
        yield GraphCollective(
            kind=re.sub("_(into_)?tensor(_out)?$", "", call[1]), dtype=node.dtype or next((n.dtype for n in read), ""),
            bytes=max(node.bytes or 0, sum(n.bytes or 0 for n in read)), group=groups.get(group, group and f"group {group}"),
            stage=graph.stage, compilation=compilation.id, span=node.span, origin=origin, inputs=inputs,
            is_hidden=is_placed and origin is not None and origin.target.rpartition(".")[2] not in CALLED,
        )  # fmt: skip
