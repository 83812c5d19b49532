"""Inputs of one trace: tensors, the symbols of their sizes, and random numbers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import sympy
import torch

from engine.graph.fake_tensors.fake_mode import make_fake_mode
from engine.graph.fake_tensors.recording_shape_env import RecordingShapeEnv
from engine.ir.guards.base import Cause
from engine.ir.sources.base import Source


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


def symbolic_layout(fake: torch.Tensor) -> tuple[Sequence[Any], Sequence[Any], Any]:
    """Return sizes, strides and storage offset, with symbols."""
    return tuple(fake.shape), tuple(fake.stride()), fake.storage_offset() if fake.layout is torch.strided else 0


class TraceSymbols:
    """The shape environment with its fake mode, and the inputs that became symbols."""

    def __init__(self, guard_cause: Callable[[str], Cause]) -> None:
        self.shape_env = RecordingShapeEnv(guard_cause)
        self.fake_mode = make_fake_mode(self.shape_env)
        self.symbolic_input_scalars: list[Any] = []
        """Symbolic scalars read from sources."""
        self.symbol_reasons: dict[Any, str] = {}
        """Reason why a number became a symbol, by symbol."""
        self.dynamic_size_reasons: dict[Source, dict[int, str]] = {}
        """Reason why input sizes became symbols, by source and dimension."""
        self.known_dynamic_sources: set[Source] = set()
        """Sources of numbers known to change between calls before any call has shown it."""


class RandomState:
    """Use of Python's random numbers by the traced code."""

    def __init__(self) -> None:
        self.mode = ""
        """Treatment of Python's random numbers, see ``RestartTracing``."""
        self.used_in_python = False
        """True if code needed random results that the graph cannot take as inputs."""
        self.input_count = 0
        """Number of random numbers that the graph takes as inputs."""
        self.drawn_symbols: dict[sympy.Symbol, str] = {}
        """Names of the functions that gave these numbers, by the number's symbol."""

    @property
    def is_used(self) -> bool:
        """Return True if the traced code drew a random number."""
        return self.used_in_python or bool(self.input_count)
