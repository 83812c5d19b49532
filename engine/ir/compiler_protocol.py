"""Interface by which dispatch calls back into the pipeline: request, cache entry, compiler."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import CodeType, FunctionType
from typing import Any, Protocol

from engine.ir.guards.base import Guard
from engine.ir.sources.base import FrameScope
from engine.options import Options
from engine.records.guards import GuardFailure, GuardResult, GuardsRecord
from engine.records.session import Session


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
