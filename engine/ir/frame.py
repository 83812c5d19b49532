"""What the tracer hands on: new bytecode with named slots, the graph, its inputs, the guards, the break."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from types import CodeType, FunctionType
from typing import Any, Protocol

import torch.fx

from engine.ir.guard import Guard
from engine.ir.handed import PrefetchedParams
from engine.ir.origin import FrameScope, Source
from engine.options import Options
from engine.records.bytecode import Span
from engine.records.guards import GuardFailure, GuardResult, GuardsRecord
from engine.records.session import Session
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


@dataclass(frozen=True)
class CompileRequest:
    """One miss: compile this function for these arguments.

    ``arguments`` maps parameter names (``*args`` and ``**kwargs`` under their own names) to values, in ``co_varnames`` order.
    """

    function: FunctionType
    arguments: Mapping[str, Any]
    frame_id: str
    """Id of the FrameRecord."""
    entry_index: int
    """Which cache entry this will be."""
    miss_reason: str
    dynamic_dims: Mapping[str, frozenset[int]] = field(default_factory=dict)
    """Origins' ``expr`` -> dimensions seen to change (automatic dynamic); dimension -1 stands for the value of an int itself."""


@dataclass(frozen=True)
class CacheEntry:
    """What the cache keeps: linked code that takes the frame's arguments, and the check that admits a call.

    ``check`` takes ``(__cells__, *arguments in co_varnames order)`` and returns a bool; ``check_text`` is its source.
    """

    id: str
    code: CodeType
    guards: tuple[Guard, ...]
    check: Callable[..., bool]
    check_text: str
    runs_python: bool = False


class Compiler(Protocol):
    """How lower stages re-enter the pipeline: misses, resume functions, nested callees, and what dispatch tells about guards.

    Guards and runtime never import each other, so dispatch asks its compiler to walk an entry's guards. A compiler is compared by identity,
    and its caches die with it.
    """

    @property
    def options(self) -> Options:
        """What the user asked for; dispatch looks at ``fullgraph``."""
        ...

    @property
    def root_wrapper(self) -> Callable[[Callable[..., Any]], Callable[..., Any]] | None:
        """What stands around each function that a person compiles (frames of role "root"); None: nothing."""
        ...

    @property
    def dispatch_callee(self) -> Callable[[Any], Any]:
        """``runtime.call.make_callee(self)``: where calls of frames left to Python go."""
        ...

    def compile_frame(self, request: CompileRequest) -> CacheEntry:
        """Trace, compile and link one frame. Never raises for what the user wrote, save under ``fullgraph``."""
        ...

    def session(self) -> Session | None:
        """The session being recorded in this thread, if any: ``ir.context.current_session()``.

        A session that was not entered through ``ir.context.recording`` is not noticed by calls that hit.
        """
        ...

    def explain(self, entry: CacheEntry, scope: FrameScope) -> tuple[GuardResult, ...]:
        """All guards of an entry evaluated against one call: ``guards.explain.explain(entry.guards, scope)``."""
        ...

    def guard_failure(self, entry: CacheEntry, scope: FrameScope) -> GuardFailure | None:
        """Why an entry does not serve a call: ``guards.reasons.rejection(entry.id, entry.guards, scope)``."""
        ...

    def guards_record(self, entry: CacheEntry) -> GuardsRecord:
        """An entry's guards as records: ``guards.tell.guards_record(entry.guards, entry.check_text)``."""
        ...

    def guard_costs(self, entry: CacheEntry, cells: Any, arguments: Mapping[str, Any]) -> tuple[float | None, ...]:
        """Nanoseconds of each of an entry's guards: ``guards.cost.costs_of``."""
        ...


CALLEE_SLOT = ConstSlot("callee")
"""Well-known slot: ``runtime.call.callee``, bound to the compiler. The broken instruction's callable goes through it."""
