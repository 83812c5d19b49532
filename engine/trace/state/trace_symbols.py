"""Symbols of one trace: shape environment, fake mode, and the reason for each symbol."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from engine.graph.fake_tensors.fake_mode import make_fake_mode
from engine.graph.fake_tensors.recording_shape_env import RecordingShapeEnv

if TYPE_CHECKING:
    from engine.ir.guards.base import Cause
    from engine.ir.sources.base import Source


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
