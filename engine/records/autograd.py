"""Captured backwards: autograd's graph as eager has it, the graph that was captured, what a backend made of it, and every backward that ran."""

from __future__ import annotations

from dataclasses import dataclass

from engine.records.base import Record
from engine.records.graph import GraphRecord


@dataclass(frozen=True, slots=True)
class AutogradNodeRecord(Record):
    """One node of autograd's graph. ``id`` is unique in the session (``autograd:b0:5``), ``index`` its place in the walk of the capture.

    ``position`` is when eager would run it, from 0; ``next`` holds ids of the nodes that its gradients go to. ``captured`` are ids of the
    captured graph's nodes that it became.
    """

    id: str
    name: str
    index: int
    position: int
    next: tuple[str, ...] = ()
    captured: tuple[str, ...] = ()
    hooks: tuple[str, ...] = ()
    """Kinds of the hooks that run around it."""


@dataclass(frozen=True, slots=True)
class CacheMissReason(Record):
    """Why no earlier capture served: what is different from the nearest one, ``nearest`` (empty: there was none)."""

    sentence: str
    nearest: str = ""
    details: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class BackwardRecord(Record):
    """One capture. ``id`` is unique in the process ("b0"). ``graphs``: "captured", then those that a backend compiled ("backward")."""

    id: str
    cause: CacheMissReason
    nodes: tuple[AutogradNodeRecord, ...] = ()
    graphs: tuple[GraphRecord, ...] = ()
    backend: str = ""
    inputs: int = 0
    symbolic_sizes: int = 0
    """Sizes that are symbols."""
    notes: tuple[str, ...] = ()
    """What was done beside capturing: moved, removed, left to ATen, with reasons."""
    seconds: float = 0.0
    """What capturing took."""


@dataclass(frozen=True, slots=True)
class BackwardCall(Record):
    """One backward that ran: ``outcome`` is "captured", "hit", or "eager" with the reason."""

    index: int
    outcome: str
    backward: str = ""
    reason: str = ""
