"""Output of the tracer: bytecode with slots, graph, inputs, guards, resume functions."""

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
from engine.torch_private.autograd import set_grad_enabled

ALL_NUMBERS = -2
"""Among the varying dimensions of a value: all numbers in it, as -1 is the number itself."""


@dataclass(frozen=True, eq=False)
class ConstSlot:
    """A placeholder in ``co_consts`` of traced code, compared by identity.

    The pipeline replaces it by the real object.
    """

    name: str


@dataclass(frozen=True)
class GraphInput:
    """One placeholder of the traced graph: name, source, fake value, example value.

    ``fake`` is a FakeTensor, a SymInt or SymFloat, or a plain value. ``example_value`` is the real value of
    this call. ``initial_version`` is the version counter of the fake tensor at its creation.
    """

    name: str
    source: Source
    fake: Any
    example_value: Any
    initial_version: int = 0
    original_layout: tuple[Sequence[Any], Sequence[Any], Any] | None = None
    """Sizes, strides and storage offset of a tensor on frame entry, possibly symbolic.

    Later changes in the traced code do not affect them.
    """

    @property
    def is_tensor(self) -> bool:
        """True if the traced value is a tensor."""
        return isinstance(self.fake, torch.Tensor)

    @property
    def has_real_tensor(self) -> bool:
        """True if the real value is a tensor, and still there."""
        return isinstance(self.example_value, torch.Tensor)

    @property
    def requires_grad(self) -> bool:
        """True if the real value is a tensor that requires grad."""
        return self.has_real_tensor and bool(self.example_value.requires_grad)

    @property
    def is_inference(self) -> bool:
        """True if the real value is an inference tensor."""
        return self.has_real_tensor and bool(self.example_value.is_inference())


@dataclass(frozen=True)
class TracedGraph:
    """Slot of the compiled graph: a callable that maps the graph inputs to a tuple of outputs."""

    slot: ConstSlot
    graph: torch.fx.GraphModule
    inputs: tuple[GraphInput, ...]
    has_object_side_effects: bool = False
    """True if the frame also mutates Python objects after the graph has run."""
    autograd_uses_after_break: str = ""
    """Autograd query on single tensors after a graph break (``register_hook``), or ""."""
    reruns_after_error: bool = False
    """True if the original code runs after the graph raised, to apply its side effects.

    The backend must leave the inputs and the random state as they were, or mark the error by ``mark_inputs_written``.
    """
    restorable_inputs: tuple[int, ...] | None = ()
    """Positions of the mutated inputs if restoring their data undoes all mutations, else None."""
    late_shape_guards: Callable[[], tuple[Guard, ...]] = tuple
    """Return guards for size assumptions made after the trace; a backend may add assumptions."""

    def has_computation(self) -> bool:
        """Return True if the graph does more than switch grad mode.

        A graph before a break inside ``with torch.no_grad()`` may only switch grad mode.
        """
        *nodes, output = self.graph.graph.nodes
        return bool(output.args[0]) or any(n.target is not set_grad_enabled for n in nodes)


@dataclass(frozen=True)
class ResumeFunctionSlot:
    """Slot of the dispatcher of a resume function.

    ``code`` has no free variables unless ``makes_closure``. In that case traced bytecode builds the function
    with cells of the broken frame and calls ``CALLEE_SLOT`` on it. The slot then only registers ``code`` as a
    resume function with name and parent.
    """

    slot: ConstSlot
    code: CodeType
    globals: dict[str, Any]
    break_span: Span | None
    makes_closure: bool = False
    dynamic_dims: Mapping[str, frozenset[int]] = field(default_factory=dict)
    """Dimensions of its arguments that vary, by source expression."""


@dataclass(frozen=True)
class TracedFrame:
    """The result of tracing one frame.

    ``code`` takes the arguments of the user's code and has its free variables. It is None if the frame is
    skipped (``record.breaks[-1].skipped``): the pipeline then runs the rewritten copy whose calls go through
    ``CALLEE_SLOT``. ``guards`` still hold what that decision depended on (usually nothing).
    """

    code: CodeType | None
    guards: tuple[Guard, ...]
    record: TraceRecord
    graph: TracedGraph | None = None
    resume_functions: tuple[ResumeFunctionSlot, ...] = ()
    slot_values: Mapping[ConstSlot, Any] = field(default_factory=dict)
    """Objects for the remaining slots: helpers and objects of modules."""
    prefetched_params: PrefetchedParams | None = None
    """Receives module tensors from the guard check, so ``code`` need not read them again."""
    compiles_callees: bool = True
    """False for a skipped frame whose calls are nested too deeply to compile each one."""


CALLEE_SLOT = ConstSlot("callee")
"""Well-known slot of the callee dispatcher, bound to the compiler.

The call that broke the graph goes through it.
"""
