"""Records of graphs, their nodes and passes."""

from __future__ import annotations

import re
from collections.abc import Collection
from typing import ClassVar

from engine.records.base import Record
from engine.records.bytecode import Span

_LAYERS = {"lstm": "LSTM", "gru": "GRU", "rnn_tanh": "RNN", "rnn_relu": "RNN"}
_ATTENTION = "scaled_dot_product_attention"
_COMPOSITES = {
    **{f"engine.{kind}": name for kind, name in _LAYERS.items()},
    "engine.attention": _ATTENTION,
    "engine.attention_with_backward": _ATTENTION,
    "engine.attention_backward": f"{_ATTENTION} backward",
}
_RECURRENT = {
    **dict.fromkeys(("engine.recurrent", "engine.cudnn_recurrent"), ""),
    **dict.fromkeys(("engine.recurrent_backward", "engine.cudnn_recurrent_backward"), " backward"),
}
"""Suffix after the layer's name; the text of such a node has the kind of layer."""
_LAYER_KIND = re.compile(r"'(lstm|gru|rnn_tanh|rnn_relu)'")


def operator_name(op: str, node: NodeRecord | None = None) -> str:
    """Return an operator's name; for one of the engine's own, the user's layer or function."""
    op = op.removesuffix(".default")
    if op not in _RECURRENT:
        return _COMPOSITES.get(op, op)
    kind = _LAYER_KIND.search(node.text) if node else None
    return (_LAYERS[kind[1]] if kind else "recurrent layer") + _RECURRENT[op]


class NodeRecord(Record):
    """One node of an FX graph.

    ``id`` is unique in the session (``fx:0/0:add_1``, ``aten:0/0:add_1``). ``origins``: ids of nodes of the
    previous stage. ``span``: the user's subexpression. ``stack``: the user's call stack, outermost first,
    ending with ``span``.
    ``shape`` and ``stride``: in elements, as text because they may be symbolic. ``bytes``: None for
    non-tensors.
    """

    OMITTED_IF_EMPTY: ClassVar[tuple[str, ...]] = ("placements",)

    id: str
    name: str
    op: str
    target: str
    text: str
    """The node as one line of Python, without its type comment."""
    inputs: tuple[str, ...] = ()
    """Ids of its input nodes."""
    shape: tuple[str, ...] | None = None
    stride: tuple[str, ...] | None = None
    dtype: str = ""
    device: str = ""
    bytes: int | None = None
    origins: tuple[str, ...] = ()
    span: Span | None = None
    stack: tuple[Span, ...] = ()
    module: str = ""
    """Path of the nn.Module whose forward created it ("blocks.0.attention"), or empty."""
    note: str = ""
    """Reason why it has no provenance, or another remark ("generated: ...")."""
    placements: tuple[str, ...] = ()
    """Placement of a DTensor on each dimension of its mesh: ``tp=4: S(0)``."""


class MeshRecord(Record):
    """Mesh of the devices of a graph; ``ranks`` are in row-major order.

    ``groups``: name of each process group of this rank, and of the dimension that it spans.
    """

    names: tuple[str, ...]
    sizes: tuple[int, ...]
    ranks: tuple[int, ...]
    rank: int
    """Rank that recorded the graph."""
    groups: tuple[tuple[str, str], ...] = ()


class EditRecord(Record):
    """One edit of a pass.

    ``added_lines`` replace ``removed_count`` lines from ``line`` on. Line numbers assume that the earlier
    edits are applied.
    """

    line: int
    removed_count: int
    added_lines: tuple[str, ...] = ()


class PassRecord(Record):
    """One pass over a graph: node counts before and after, removed and added lines.

    A changed line is both removed and added. Long lists are truncated; ``removed_count`` and ``added_count``
    are the full lengths.
    """

    name: str
    nodes_before: int
    nodes_after: int
    removed_count: int = 0
    added_count: int = 0
    removed: tuple[str, ...] = ()
    added: tuple[str, ...] = ()
    has_exact_edits: bool = False
    """True if ``edits`` reproduce the result of the pass exactly; False for huge graphs."""
    edits: tuple[EditRecord, ...] = ()
    lines_before: tuple[str, ...] = ()
    """The graph before the pass, one line per node; empty if the previous pass's result."""
    is_user: bool = False
    """True for a pass that the user registered."""
    failure: str = ""
    """Why the pass of a user was undone; empty if it was not."""
    detail: str = ""
    """Traceback of the failure."""
    difference: str = ""
    """First difference of values that an edit makes; empty if there is none."""
    span: Span | None = None
    """Definition of the user's pass; the line at fault if it failed."""


class GraphRecord(Record):
    """A graph at one stage: "fx", "aten", "joint", "forward", "backward", "decomposed", ..."""

    OMITTED_IF_EMPTY: ClassVar[tuple[str, ...]] = ("mesh", "digest")

    id: str
    stage: str
    title: str
    nodes: tuple[NodeRecord, ...] = ()
    text: str = ""
    """Python text of a graph that is available only as text (observed torch.compile)."""
    passes: tuple[PassRecord, ...] = ()
    """Passes that produced the graph, in order."""
    mesh: MeshRecord | None = None
    """Mesh of its DTensors; the world of its collectives if it has none."""
    digest: str = ""
    """Digest of the graph where edits are applied; empty if it is that of ``nodes``."""

    @property
    def nodes_by_source(self) -> tuple[NodeRecord, ...]:
        """Nodes in order; one for each source line is enough, and inputs may be missing."""
        return self.nodes

    def find_nodes(self, ids: Collection[str]) -> list[NodeRecord]:
        """Return the nodes with these ids, in the graph's order."""
        return [n for n in self.nodes if n.id in ids]
