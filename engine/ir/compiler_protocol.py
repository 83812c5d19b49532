"""Protocol by which dispatch calls the pipeline: request, cache entry, compiler."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import CodeType, FunctionType
from typing import Any, Protocol

from engine.ir.guards.base import Guard
from engine.ir.sources.base import FrameScope
from engine.ir.wrapped_parameters import ItemNames
from engine.options import Options
from engine.records.guards import GuardFailure, GuardResult, GuardsRecord


@dataclass(frozen=True)
class CompileRequest:
    """Request after a cache miss: compile this function for these arguments.

    ``arguments`` maps parameter names to values in ``co_varnames`` order. ``*args`` and ``**kwargs`` are stored
    under their own names.
    """

    function: FunctionType
    arguments: Mapping[str, Any]
    frame_id: str
    """Id of the FrameRecord."""
    entry_index: int
    """Index of the new cache entry."""
    miss_reason: str
    dynamic_dims: Mapping[str, frozenset[int]] = field(default_factory=dict)
    """Source ``expr`` -> dimensions seen to change (automatic dynamic shapes).

    Dimension -1 means the value of an int itself.
    """
    item_names: Mapping[str, ItemNames] = field(default_factory=dict)
    """Names of the items of ``*args`` and ``**kwargs``, from ``wrapped_parameters``."""


@dataclass(frozen=True)
class CacheEntry:
    """A cache entry: linked code that takes the frame's arguments, and its guard check.

    ``check`` takes ``(__cells__, *arguments in co_varnames order)`` and returns a bool. ``check_text`` is its
    source.
    """

    id: str
    code: CodeType
    guards: tuple[Guard, ...]
    check: Callable[..., bool]
    check_text: str
    runs_python: bool = False
    resume_functions: tuple[Any, ...] = ()
    """Dispatchers of resume functions that ``code`` calls by weak references."""
    modules: Mapping[str, Callable[[], Any]] = field(default_factory=dict)
    """Weak references to the modules that it was compiled for, by parameter name."""


class GuardQueries(Protocol):
    """Questions about an entry's guards.

    Guards and runtime never import each other, so dispatch asks them through its compiler.
    """

    def explain(self, entry: CacheEntry, scope: FrameScope) -> tuple[GuardResult, ...]:
        """Evaluate all guards of an entry for one call; see ``guards.explain.explain``."""
        ...

    def failure(self, entry: CacheEntry, scope: FrameScope) -> GuardFailure | None:
        """Return the first guard failure of an entry for a call, or None if all guards hold."""
        ...

    def record(self, entry: CacheEntry) -> GuardsRecord:
        """Return the guards of an entry as records."""
        ...

    def costs(self, entry: CacheEntry, cells: Any, arguments: Mapping[str, Any]) -> tuple[float | None, ...]:
        """Return the nanoseconds that each guard of an entry takes (``measure_guard_costs``)."""
        ...


class Compiler(Protocol):
    """Interface by which lower stages call back into the pipeline.

    It handles cache misses, resume functions, nested callees and guard reports. A compiler is compared by
    identity; its caches are freed with it.
    """

    @property
    def options(self) -> Options:
        """The user's options; dispatch reads ``fullgraph``."""
        ...

    @property
    def root_wrapper(self) -> Callable[[Callable[..., Any]], Callable[..., Any]] | None:
        """Wrapper of each function that the user compiles (frames of role "root"), or None."""
        ...

    @property
    def dispatch_callee(self) -> Callable[[Any], Any]:
        """Dispatcher of calls in skipped frames: ``make_callee(self)`` of the runtime."""
        ...

    @property
    def dispatch_callee_at_break(self) -> Callable[[Any], Any]:
        """Dispatcher of the call at which a graph broke, which is not traced as one call again."""
        ...

    @property
    def guard_queries(self) -> GuardQueries:
        """Answers about the guards of this compiler's entries."""
        ...

    def with_backend(self, backend: str | Callable[..., Any]) -> Compiler:
        """Return the compiler with the same options but for this backend."""
        ...

    def compile_frame(self, request: CompileRequest) -> CacheEntry:
        """Trace, compile and link one frame.

        User code that cannot be traced raises only under ``fullgraph``.
        """
        ...
