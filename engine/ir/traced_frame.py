"""What the tracer hands on: new bytecode with named slots, the graph, its inputs, the guards, the break."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from types import CodeType
from typing import Any

import torch.fx

from engine.ir.guards.base import Guard
from engine.ir.prefetched_params import PrefetchedParams
from engine.ir.sources.base import Source
from engine.records.bytecode import Span
from engine.records.trace import TraceRecord


@dataclass(frozen=True, eq=False)
class ConstSlot:
    """A placeholder among ``co_consts`` of traced code, compared by identity; the pipeline puts the real object in its place."""

    name: str


@dataclass(frozen=True)
class GraphInput:
    """One placeholder of the traced graph: what it is called, how generated code loads it, its fake value, and the real one of this call.

    ``fake`` is a FakeTensor, a SymInt/SymFloat, or a plain value; ``version`` what a fake tensor's version counter was when it was made.
    """

    name: str
    source: Source
    fake: Any
    example_value: Any
    initial_version: int = 0
    original_layout: tuple[Sequence[Any], Sequence[Any], Any] | None = None
    """Sizes, strides and place in its memory that a tensor came with, symbols among them, whatever the traced code did to it."""


@dataclass(frozen=True)
class TracedGraph:
    """The compiled graph goes here: a callable that takes the graph inputs in order and returns a tuple of the graph's outputs."""

    slot: ConstSlot
    graph: torch.fx.GraphModule
    inputs: tuple[GraphInput, ...]
    has_object_side_effects: bool = False
    """The frame also changes Python objects, once the graph has run."""
    autograd_uses_after_break: str = ""
    """What the rest of the frame, after a break, asks autograd about single tensors with (``register_hook``), if it does."""
    late_shape_guards: Callable[[], tuple[Guard, ...]] = tuple
    """Guards for what has been assumed of symbolic sizes since the frame was traced: a backend may assume more."""

    def has_computation(self) -> bool:
        """Whether it does more than switch grad mode, as before a break inside ``with torch.no_grad()``."""
        *nodes, output = self.graph.graph.nodes
        return bool(output.args[0]) or any(n.target is not torch._C._set_grad_enabled for n in nodes)


@dataclass(frozen=True)
class ResumeFunctionSlot:
    """A dispatcher for a resume function goes here. ``code`` has no free variables unless ``makes_closure``:

    then the traced bytecode builds the function itself (cells of the broken frame) and calls ``runtime.callee`` on it, and the slot only
    registers ``code`` as a resume function with its name and parent.
    """

    slot: ConstSlot
    code: CodeType
    globals: dict[str, Any]
    break_span: Span | None
    makes_closure: bool = False


@dataclass(frozen=True)
class TracedFrame:
    """The outcome of tracing one frame. ``code`` takes the same arguments as the user's code and has the same free variables.

    When ``code`` is None the frame is left to Python (``record.breaks[-1].skipped``): the pipeline then runs the rewritten copy
    whose calls go through ``runtime.callee``, and ``guards`` are still what the decision depended on (usually none).
    """

    code: CodeType | None
    guards: tuple[Guard, ...]
    record: TraceRecord
    graph: TracedGraph | None = None
    resume_functions: tuple[ResumeFunctionSlot, ...] = ()
    slot_values: Mapping[ConstSlot, Any] = field(default_factory=dict)
    """Objects for the remaining slots (helpers, modules' objects)."""
    prefetched_params: PrefetchedParams | None = None
    """Wants the module's tensors from the check, so that ``code`` need not read them again."""


CALLEE_SLOT = ConstSlot("callee")
"""Well-known slot: ``runtime.call.callee``, bound to the compiler. The broken instruction's callable goes through it."""
