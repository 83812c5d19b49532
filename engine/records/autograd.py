"""Records of captured backwards (compiled autograd): autograd nodes, graphs, runs."""

from __future__ import annotations

from engine.records.base import Record
from engine.records.graph import GraphRecord


class AutogradNodeRecord(Record):
    """One node of autograd's graph.

    ``id`` is unique in the session (``autograd:b0:5``), ``index`` is the node's position in the capture's
    traversal,
    ``position`` its position in eager's execution order, from 0. ``next``: ids of the nodes that receive
    its gradients. ``captured``: ids of its nodes in the captured graph.
    """

    id: str
    name: str
    index: int
    position: int
    next: tuple[str, ...] = ()
    captured: tuple[str, ...] = ()
    hooks: tuple[str, ...] = ()
    """Kinds of the hooks that run before and after it."""


class CacheMissReason(Record):
    """Reason of a compiled-autograd cache miss: differences from the nearest earlier capture.

    ``nearest`` is its id; empty if there was none.
    """

    sentence: str
    nearest: str = ""
    details: tuple[str, ...] = ()


class BackwardRecord(Record):
    """One captured backward.

    ``id`` is unique in the process ("b0"). ``graphs``: the "captured" graph, then the graphs that a backend
    compiled ("backward").
    """

    id: str
    cause: CacheMissReason
    nodes: tuple[AutogradNodeRecord, ...] = ()
    graphs: tuple[GraphRecord, ...] = ()
    backend: str = ""
    inputs: int = 0
    symbolic_sizes: int = 0
    """Number of symbolic sizes."""
    notes: tuple[str, ...] = ()
    """Changes to the captured graph (moved, removed, left to ATen), with reasons."""
    seconds: float = 0.0
    """Seconds that the capture took."""


class BackwardCall(Record):
    """One run of a backward: ``outcome`` is "captured", "hit", or "eager" with the reason."""

    index: int
    outcome: str
    backward: str = ""
    reason: str = ""
