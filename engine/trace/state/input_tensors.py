"""Input tensors of one trace, as they were before the traced code changed them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any


class InputTensors:
    """Input tensors with their original layouts, and how their ``data`` was assigned."""

    def __init__(self) -> None:
        self.input_tensors: list[tuple[Any, int]] = []
        """Variables of input tensors, with the versions of their fakes at read."""
        self.input_layouts: dict[int, tuple[Sequence[Any], Sequence[Any], Any]] = {}
        """Original sizes, strides and storage offsets of inputs, by the id of their fakes.

        Later mutations do not change these entries.
        """
        self.saw_tensor = False
        self.graph_sets_data = False
        """True if the graph sets the data of an external tensor."""
        self.data_assigned_inputs: list[Any] = []
        """External tensors whose ``data`` was assigned."""
