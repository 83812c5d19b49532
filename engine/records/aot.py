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
class SavedValue(Record):
    """One value between forward and backward: ``action`` is "saved" or "recomputed".

    ``bytes`` is what saving it takes, or what not saving it spares; 0 for what takes no memory of its own (inputs, views).
    """

    name: str
    action: str
    bytes: int
    reason: str
    origins: tuple[str, ...] = ()
    """Ids of the nodes of the traced graph that it came from."""


@dataclass(frozen=True, slots=True)
class PartitionRecord(Record):
    """How the joint graph was cut into forward and backward. Bytes are those of the call that was compiled."""

    method: str
    values: tuple[SavedValue, ...] = ()
    saved_bytes: int = 0
    """Activations kept between forward and backward, inputs not counted."""
    saved_input_bytes: int = 0
    """Inputs that are kept alive for the backward."""
    bytes_without_recompute: int = 0
    """Activations that would be kept if nothing were computed again."""
    forward_peak_bytes: int = 0
    """What the forward needs at most at once, its inputs not counted: by the sizes, run operator by operator."""
    backward_peak_bytes: int = 0
    """The same of the backward, with the activations that it was left and the tangents; inputs of the call not counted."""


@dataclass(frozen=True, slots=True)
class WrapperValuesRecord(Record):
    """What the values of a call held as it passed a layer: "in" on the way to the graph, "back" what came back to the layer, "out" what it hands on.

    ``layer`` is a wrapper's name, "call" outside of all, "graph" inside. ``cut`` counts values that were not kept.
    """

    wrapper: str
    direction: str
    values: tuple[tuple[str, str], ...]
    dropped: int = 0


@dataclass(frozen=True, slots=True)
class CallValuesRecord(Record):
    """One call's way through the layers, moment by moment: noted by sessions that record every step, or on request.

    What is noted of its backward stands last, as moments of the layer "backward".
    """

    wrapper_values: tuple[WrapperValuesRecord, ...]
    replayed_on: str = ""
    """Of a call that was made again to be noted: on which numbers. Empty for a call of the user's own."""


@dataclass(frozen=True, slots=True)
class AotRecord(Record):
    """Outermost wrapper first. ``mode`` says what ran: "inference", "training", "eager" with the reason in ``note``."""

    mode: str
    values: tuple[ValueFacts, ...] = ()
    wrappers: tuple[WrapperRecord, ...] = ()
    note: str = ""
    partition: PartitionRecord | None = None
    """How forward and backward were divided, where there is a backward."""
    cache: str = ""
    """What came of the cache on disk: "read from disk", "kept on disk", or why neither; empty where it is off."""
