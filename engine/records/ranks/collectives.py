"""Collectives of compiled graphs, and the mesh that they run on."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from engine.records.bytecode import Span
from engine.records.graph import GraphRecord, MeshRecord, NodeRecord
from engine.records.session_data import CompilationRecord

COLLECTIVE = re.compile(r"\b_c10d_functional\.(?!wait_tensor|_wrap)(\w+)")
_GROUP = re.compile(r"'([^']*)'\)$")
_CHUNK = re.compile(r"\bgetitem(_\d+)?\b")
_TAKEN_CHUNK = re.compile(r"^(getitem(?:_\d+)? = \w+)\[\d+\]$")
CALLED = frozenset(("redistribute", "full_tensor", "from_local", "to_local", "local_tensor"))
"""Methods of DTensor by which a program asks for a redistribution."""


COLLECTIVE_NAMESPACES = frozenset(("_c10d_functional", "_c10d_functional_autograd", "_dtensor", "symm_mem"))
"""Namespaces of operators that a communication library runs."""


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


def recorded_mesh(compilations: Sequence[CompilationRecord]) -> MeshRecord | None:
    """Return the largest mesh of compiled graphs, those of DTensors first."""
    meshes = [g.mesh for c in compilations for g in c.graphs if g.mesh is not None]
    return max(meshes, key=lambda m: (bool(m.groups), len(m.ranks)), default=None)


def recorded_collectives(compilations: Sequence[CompilationRecord]) -> list[GraphCollective]:
    """Return the collectives of all compiled graphs, in order."""
    return [collective for c in compilations for g in _final_graphs(c) for collective in _collectives(c, g)]


def _final_graphs(compilation: CompilationRecord) -> list[GraphRecord]:
    """Return the ATen graphs that run; the traced graph if there are none."""
    aten_graphs = [g for g in compilation.graphs if g.stage in ("aten", "forward", "backward")]
    return aten_graphs or list(compilation.graphs[:1])


def _collectives(compilation: CompilationRecord, graph: GraphRecord) -> Iterator[GraphCollective]:
    if graph.text and COLLECTIVE.search(graph.text) is None:
        return  # The nodes of a log are parsed from the text on access.
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
