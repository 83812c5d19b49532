"""Graphs as they are shown: one record a node, with where it came from."""

from __future__ import annotations

from dataclasses import dataclass

from engine.records.base import Record
from engine.records.bytecode import Span


@dataclass(frozen=True, slots=True)
class NodeRecord(Record):
    """One node of an fx graph.

    ``id`` is unique in the session (``fx:0/0:add_1``, ``aten:0/0:add_1``). ``origins`` are ids of nodes of the stage before;
    ``span`` is the user's sub-expression and ``stack`` the user's call stack, outermost first, ending with ``span``.
    ``shape`` and ``stride`` are in elements, as text because they may be symbols; ``bytes`` is None for non-tensors.
    """

    id: str
    name: str
    op: str
    target: str
    text: str
    """The node as one line of Python, without its type comment."""
    inputs: tuple[str, ...] = ()
    """Ids of the nodes that it reads."""
    shape: tuple[str, ...] | None = None
    stride: tuple[str, ...] | None = None
    dtype: str = ""
    device: str = ""
    bytes: int | None = None
    origins: tuple[str, ...] = ()
    span: Span | None = None
    stack: tuple[Span, ...] = ()
    module: str = ""
    """Path of the nn.Module whose forward made it ("blocks.0.attention"), empty at the root."""
    note: str = ""
    """Why a node has no origin, or what is special about it ("generated: ...")."""


@dataclass(frozen=True, slots=True)
class EditRecord(Record):
    """One place that a pass rewrote: at line ``at``, ``gone`` lines made room for ``made``. Lines are counted with the edits before it done."""

    line: int
    removed_count: int
    added_lines: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class PassRecord(Record):
    """One rewrite of a graph: how many nodes there were and are, and the lines that it took away and made (a changed line is both).

    Long lists are cut: ``gone`` and ``made`` are their full lengths.
    """

    name: str
    nodes_before: int
    nodes_after: int
    removed_count: int = 0
    added_count: int = 0
    removed: tuple[str, ...] = ()
    added: tuple[str, ...] = ()
    has_exact_edits: bool = False
    """Whether ``edits`` turn the graph before into the graph after, line by line; not so for graphs too large to keep."""
    edits: tuple[EditRecord, ...] = ()
    lines_before: tuple[str, ...] = ()
    """The graph before, a line a node; empty where it is the graph that the pass before left."""


@dataclass(frozen=True, slots=True)
class GraphRecord(Record):
    """A graph at one stage: "fx", "aten", "joint", "forward", "backward", "decomposed"."""

    id: str
    stage: str
    title: str
    nodes: tuple[NodeRecord, ...] = ()
    text: str = ""
    """Python text where the graph was only available as text (observed torch.compile)."""
    passes: tuple[PassRecord, ...] = ()
    """Rewrites that made it what it is, in order."""
