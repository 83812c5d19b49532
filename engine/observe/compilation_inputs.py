"""Inputs of compilations, put together from events of torch's structured trace."""

from __future__ import annotations

import re
from typing import Any

from engine.observe.parse_graph import SHORT_DTYPES
from engine.observe.parse_messages import user_expr
from engine.observe.trace_events import TraceEvent
from engine.records.session import Session

_ARGUMENT_SOURCE = re.compile(r"^L\['\w+'\](?:\[[^\]]{1,100}\])*$")
"""Source of an argument or of its item; parameters and globals do not change per call."""


class CompilationInputs:
    """Tensors that torch described, and the arguments of each compilation among them."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._tensors: dict[tuple[str, Any, Any], str] = {}
        """Dtype and shape by compilation, describer and id."""
        self._inputs: dict[str, dict[str, str]] = {}

    @property
    def pending(self) -> tuple[str, ...]:
        """Compilations with inputs that nobody has taken."""
        return tuple(self._inputs)

    def on_tensor(self, event: TraceEvent) -> None:
        """Remember the description of a tensor; one on a GPU makes the session's device a GPU."""
        facts = event.metadata
        size = ", ".join(str(s) for s in facts.get("size") or ())
        dtype = str(facts.get("dtype")).removeprefix("torch.")
        kind = f"{SHORT_DTYPES.get(dtype, dtype)}[{size}]"
        self._tensors[event.compilation, facts.get("describer_id"), facts.get("id")] = kind
        if "cuda" in str(facts.get("device", "")) and self._session.device == "cpu":
            self._session.device = "cuda"

    def on_source(self, event: TraceEvent) -> None:
        """Add an input if the event says which argument a described tensor is."""
        facts = event.metadata
        tensor = self._tensors.get((event.compilation, facts.get("describer_id"), facts.get("id")))
        source = str(facts.get("source"))
        if tensor is not None and _ARGUMENT_SOURCE.match(source):
            self._inputs.setdefault(event.compilation, {})[user_expr(source)] = tensor

    def take(self, compilation: str) -> dict[str, str]:
        """Return the inputs that were received since the last time, by expression."""
        return self._inputs.pop(compilation, {})

    def forget_tensors(self, compilation: str) -> None:
        """Forget the tensors of a compilation that has ended."""
        for key in [k for k in self._tensors if k[0] == compilation]:
            del self._tensors[key]
