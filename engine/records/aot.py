"""The layers between the user's call and the functional graph."""

from __future__ import annotations

from dataclasses import dataclass

from engine.records.base import Record


@dataclass(frozen=True, slots=True)
class WrapperAction(Record):
    """What one wrapper does to one argument or output, and why."""

    argument: str
    action: str
    why: str


@dataclass(frozen=True, slots=True)
class WrapperRecord(Record):
    """One ring of the onion; ``actions`` is empty when the wrapper had nothing to do."""

    name: str
    actions: tuple[WrapperAction, ...] = ()


@dataclass(frozen=True, slots=True)
class ValueFacts(Record):
    """What the analysis found about one input or output of the graph, in words the field uses ("mutated", "alias of input 0")."""

    name: str
    role: str
    facts: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class AotRecord(Record):
    """Outermost wrapper first. ``mode`` says what ran: "inference", "training", "eager" with the reason in ``note``."""

    mode: str
    values: tuple[ValueFacts, ...] = ()
    wrappers: tuple[WrapperRecord, ...] = ()
    note: str = ""
