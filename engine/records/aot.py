"""Records of the AOT runtime wrappers, the partition, and input and output metadata."""

from __future__ import annotations

from typing import ClassVar

from engine.records.base import Record


class FallbackRecord(Record):
    """A fallback of one stage.

    ``kind``: stable id of the cause. ``reason``: a clause about this call. ``hint``: what to do. ``node``: name of the
    graph node that caused it, if there is one.
    """

    kind: str
    reason: str
    hint: str = ""
    node: str = ""


class WrapperAction(Record):
    """Effect of one wrapper on one argument or output, with the reason."""

    argument: str
    action: str
    why: str


class WrapperRecord(Record):
    """One AOT runtime wrapper; ``actions`` is empty if it had nothing to do."""

    name: str
    actions: tuple[WrapperAction, ...] = ()


class ValueFacts(Record):
    """Facts about one input or output of the graph ("mutated", "alias of input 0")."""

    name: str
    role: str
    facts: tuple[str, ...] = ()


class SavedValue(Record):
    """One value between forward and backward: ``action`` is "saved" or "recomputed".

    ``bytes``: memory that saving it takes, or that recomputing it frees; 0 if it has no memory of its own
    (inputs, views).
    """

    OMITTED_IF_EMPTY: ClassVar[tuple[str, ...]] = ("unknown_bytes",)

    name: str
    action: str
    bytes: int
    reason: str
    origins: tuple[str, ...] = ()
    """Ids of the nodes of the traced graph that it was computed by."""
    unknown_bytes: str = ""
    """Bytes beside ``bytes``, as an expression of symbols that only a run gives."""


class PartitionRecord(Record):
    """The partition of the joint graph into forward and backward; bytes for the compiled call."""

    method: str
    values: tuple[SavedValue, ...] = ()
    saved_bytes: int = 0
    """Activations saved for backward, in bytes; inputs are not counted."""
    saved_input_bytes: int = 0
    """Inputs saved for backward, in bytes."""
    bytes_without_recompute: int = 0
    """Bytes of activations that would be saved without recomputation."""
    forward_peak_bytes: int = 0
    """Estimated peak memory of the forward run op by op, without its inputs."""
    backward_peak_bytes: int = 0
    """Estimated peak memory of the backward: activations and tangents, without call inputs."""

    @property
    def unknown_saved_bytes(self) -> str:
        """Bytes saved beside ``saved_bytes``, as an expression of symbols that only a run gives."""
        return " + ".join(v.unknown_bytes for v in self.values if v.action == "saved" and v.unknown_bytes)


class CheckpointTrial(Record):
    """Memory of a training call that was compiled again under an activation checkpoint.

    ``code`` is what a user writes for it, ``largest`` the largest saved value. ``peaks`` are those of the forward and the backward, in bytes. ``difference``
    is the first one from eager, empty if results and gradients agree; ``problem`` says why there is no result.
    """

    policy: str
    code: str
    saved_bytes: int = 0
    peaks: tuple[int, ...] = ()
    difference: str = ""
    problem: str = ""
    largest: SavedValue | None = None


class WrapperValuesRecord(Record):
    """Values of a call at one wrapper boundary.

    ``direction``: "in" on the way to the graph, "back" for what the wrapper receives from inside, "out" for
    what it returns. ``wrapper``: a wrapper's name, "call" for the outermost boundary, "graph" for the
    innermost. ``dropped``: number of values that were not recorded.
    """

    wrapper: str
    direction: str
    values: tuple[tuple[str, str], ...]
    dropped: int = 0


class NodeValuesRecord(Record):
    """Values of one ATen node in one call: ``count`` elements, some NaN or infinite.

    Range and mean are of the finite elements; None without any. ``histogram`` counts them in equal parts of the range.
    ``heat_map``: rows of cells, the last dimension from left to right, each with the mean of its elements from 0 (lowest)
    to 9 (highest), or "x" if an element is not finite; empty if all elements are equal.
    """

    node: str
    count: int
    nans: int = 0
    infinities: int = 0
    low: float | None = None
    high: float | None = None
    mean: float | None = None
    histogram: tuple[int, ...] = ()
    heat_map: tuple[str, ...] = ()


class CallValuesRecord(Record):
    """Values of one call at all wrapper boundaries, in order.

    Recorded at level "steps", or on request. Values of its backward are last, with the wrapper "backward".
    """

    wrapper_values: tuple[WrapperValuesRecord, ...]
    replayed_on: str = ""
    """Description of a replay's inputs; empty for a user's call."""
    nodes: tuple[NodeValuesRecord, ...] = ()
    """Statistics of each node's values in the first call, forward then backward."""


class AotRecord(Record):
    """AOT stage of a compilation; wrappers are outermost first.

    ``mode`` is "inference", "training", or "eager" with the reason in ``note``.
    """

    mode: str
    values: tuple[ValueFacts, ...] = ()
    wrappers: tuple[WrapperRecord, ...] = ()
    note: str = ""
    partition: PartitionRecord | None = None
    """The partition into forward and backward; None without a backward."""
    fallback: FallbackRecord | None = None
    """Why the graph runs as traced; None if it is compiled."""
    cache: str = ""
    """Disk cache outcome (hit, stored, or why neither); empty if the cache is off."""
