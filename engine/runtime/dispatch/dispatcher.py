"""Dispatcher: run the cache entry whose guards pass; compile a new entry on a cache miss.

A dispatcher is a function with the user function's signature.
"""

from __future__ import annotations

import contextlib
import inspect
import threading
import time
import traceback
import weakref
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from types import FunctionType, MappingProxyType
from typing import Any, cast

from engine.bytecode.calling_frames import make_calling_frame
from engine.bytecode.intercept_calls import intercept_calls
from engine.errors import EngineError, RecompileForbidden, RecompileLimit
from engine.graph.fake_tensors.fake_mode import clear_symbol_caches
from engine.interrupts.deferred_interrupts import defer_interrupts
from engine.interrupts.weak_tables import WeakTable
from engine.ir.annotations import is_disabled, skipped_frame
from engine.ir.compiler_protocol import CacheEntry, Compiler, CompileRequest
from engine.ir.current_session import current_session, force_slow_dispatch
from engine.ir.graph_callable import Run
from engine.ir.graph_sources import limit_graph_sources
from engine.ir.guards.base import LOOP_VALUE_TEXT, STACK_VALUE_TEXT
from engine.ir.introspection.transformed_functions import is_traced_as_one_call
from engine.ir.pass_set import active_passes
from engine.ir.sources.base import FrameScope
from engine.ir.unwrap_compiled import DISPATCHER_ORIGINALS, unwrap_compiled
from engine.ir.wrapped_parameters import name_arguments, wrapped_parameters
from engine.options import config
from engine.process_state import make_lock
from engine.records.bytecode import Span
from engine.records.counts import nearest_guard_failure
from engine.records.guards import LOOP_TEXTS, Fix, GuardFailure
from engine.records.runtime import SkippedRecord, StageFailure
from engine.records.session import Session
from engine.runtime.dispatch.code_cache import COMPILE_LOCK, CodeCache, all_caches, caches_of, drop_unused_caches
from engine.runtime.dispatch.codegen import (
    bind_pairs,
    copy_metadata,
    make_dispatch_function,
    signature_of,
    strip_dispatch_frames,
)
from engine.runtime.dispatch.record_calls import HitDescription, RecordedHit, active_frames, record_call, record_frame
from engine.runtime.dispatch.recorded_arguments import record_arguments
from engine.runtime.dispatch.stock_switches import (
    EAGER_FIRST,
    follow_stance,
    forced_backend,
    is_number_static,
    skips_guards,
    takes_fast_path,
    torch_settings,
)
from engine.torch_private.global_state import call_at_reset, changed_setting, compile_callbacks
from engine.torch_private.torch_function import DisableTorchFunction

__all__ = ["DispatcherState", "dispatcher_state_of", "make_dispatcher", "unwrap_compiled"]

MAX_COMPILES = 256
"""Compiles of one frame for all modules, as torch's ``accumulated_recompile_limit``."""

MAX_FAILURES = 2
"""Internal compile errors on one frame, after which it always runs as Python."""

_FORCED_EAGER = (
    'torch.compiler.set_stance("force_eager") is on, so the call ran as Python',
    'Call torch.compiler.set_stance("default") to compile again.',
)


class _CompilingFlag(threading.local):
    """Per-thread flag: this thread is compiling; compiled functions called now run eagerly."""

    def __init__(self) -> None:
        self.is_compiling = False


_compiling = _CompilingFlag()
_order_lock = make_lock()
"""Held while a dispatcher's (check, run) pairs are replaced.

A call that finds the lock taken continues without reordering.
"""


class _BoundEntry:
    """One cache entry bound to one dispatcher, with that dispatcher's closure cells."""

    __slots__ = ("_run_and_promote", "entry", "run")

    def __init__(self, entry: CacheEntry, run: Run) -> None:
        self.entry = entry
        self.run = run
        self._run_and_promote: Run | None = None

    def run_and_promote(self, owner: DispatcherState) -> Run:
        """Return a function that moves the entry to the front and then runs it."""
        if self._run_and_promote is None:
            # Weak: a cycle would retain a resume function's cells and their tensors until the next collection.
            self._run_and_promote = _make_run_and_promote(weakref.ref(owner), self.entry, self.run)
        return self._run_and_promote


def _make_run_and_promote(owner: weakref.ref[DispatcherState], entry: CacheEntry, run: Run) -> Run:
    def promoting(*args: Any, **kwargs: Any) -> Any:
        state = owner()
        if state is not None:
            state.promote(entry)
        return run(*args, **kwargs)

    return promoting


def bind_entry(entry: CacheEntry, function: FunctionType) -> FunctionType:
    """Return the entry's code as a function with the closure cells of ``function``."""
    run = FunctionType(entry.code, function.__globals__, function.__name__, None, function.__closure__)
    if entry.resume_functions:
        run.__dict__["resume_functions"] = entry.resume_functions  # a frame that runs holds its function
    return run


class DispatcherState:
    """State of one dispatcher: the user function with its closure, and the code cache."""

    __slots__ = (
        "__weakref__",
        "_bound_entries",
        "_entries_cell",
        "_lookup_order",
        "_version",
        "cache",
        "compiler",
        "function",
        "item_names",
    )

    def __init__(self, function: FunctionType, compiler: Compiler, cache: CodeCache) -> None:
        self.function = function
        self.item_names = wrapped_parameters(function)
        self.compiler = compiler
        self.cache = cache
        self._lookup_order: tuple[CacheEntry, ...] = ()
        self._bound_entries: dict[int, _BoundEntry] = {}
        self._version = -1
        self._entries_cell: Any = None

    def make_dispatcher_function(self) -> FunctionType:
        """Create the dispatcher function, with the entries that the cache already has."""
        dispatch, self._entries_cell = make_dispatch_function(self.function, self._miss_handler())
        if self.cache.version:
            with _order_lock:
                self._version = self.cache.version
                self._set_lookup_order(self.cache.entries)
        return dispatch

    def _miss_handler(self) -> Callable[[tuple[Any, ...]], Any]:
        return self.run_uncompiled if self.function.__code__.co_flags & _GENERATOR_FLAGS else self.on_miss

    @property
    def entries(self) -> tuple[CacheEntry, ...]:
        """Cache entries in lookup order, most recently hit first."""
        if self._version != self.cache.version:
            self._sync()
        return self._lookup_order

    # Lookup order. ``_entries_cell`` has the bound entries; each run but the first also promotes its entry.

    def refresh(self) -> None:
        """Update the lookup order after the cache was cleared."""
        if self._entries_cell is not None:
            self._sync()

    def _sync(self) -> None:
        """Update the lookup order after the cache changed."""
        follow_stance()
        call_at_reset(reset)
        with _order_lock:
            self._version = self.cache.version
            entries = self.cache.entries
            current_ids = {id(e) for e in (*entries, self.cache.python_entry)}
            self._bound_entries = {key: bound for key, bound in self._bound_entries.items() if key in current_ids}
            alive = set(map(id, entries))
            known_ids = set(map(id, self._lookup_order))
            self._set_lookup_order(
                (*(e for e in entries if id(e) not in known_ids), *(e for e in self._lookup_order if id(e) in alive))
            )

    def promote(self, entry: CacheEntry) -> None:
        """Move an entry to the front of the lookup order."""
        if self._lookup_order and self._lookup_order[0] is entry:
            return
        if not _order_lock.acquire(blocking=False):
            return
        try:
            if any(e is entry for e in self._lookup_order[1:]):
                self._set_lookup_order((entry, *(e for e in self._lookup_order if e is not entry)))
        finally:
            _order_lock.release()

    def _set_lookup_order(self, order: tuple[CacheEntry, ...]) -> None:
        self._lookup_order = order
        pairs = [
            (e.check, self._bind_entry(e).run_and_promote(self) if i else self.entry_function(e))
            for i, e in enumerate(order)
        ]
        python = self.cache.python_entry
        if python is not None:
            pairs.append((python.check, self.entry_function(python)))
        self._entries_cell.cell_contents = bind_pairs(tuple(pairs))

    def _bind_entry(self, entry: CacheEntry) -> _BoundEntry:
        bound = self._bound_entries.get(id(entry))
        if bound is None or bound.entry is not entry:
            bound = self._bound_entries[id(entry)] = _BoundEntry(entry, bind_entry(entry, self.function))
        return bound

    def entry_function(self, entry: CacheEntry) -> Run:
        """Return the entry's code as a function with this function's closure cells."""
        return self._bind_entry(entry).run

    # Slow path.

    def on_miss(self, values: tuple[Any, ...]) -> Any:
        """Run a call that missed the fast path; ``values`` are in ``co_varnames`` order."""
        spread = signature_of(self.function.__code__).call_positional
        if _compiling.is_compiling:
            return spread(self.function, *values)
        session = current_session()
        if follow_stance() == "force_eager":
            if session is not None:
                session.add_skipped(SkippedRecord(self.cache.frame.name, *_FORCED_EAGER))
            return spread(self.function, *values)
        backend = forced_backend()
        if backend not in (None, self.compiler.options.backend):
            return spread(make_dispatcher(self.function, self.compiler.with_backend(backend)), *values)
        if session is None:
            entry, _ = self._look_up(values)
            run = self.entry_function(entry or self._compile(values, None)[0])
            return spread(run, *values)
        return self._run_recorded(values, session, spread)

    def _run_recorded(self, values: tuple[Any, ...], session: Session, spread: Run) -> Any:
        start = time.perf_counter()
        entry, checked = self._look_up(values)
        seconds = time.perf_counter() - start
        if entry is None or entry.runs_python:
            entry = self._record_miss(values, session, entry, checked, seconds)
        else:
            with DisableTorchFunction():
                self._record_hit(values, session, entry, (checked, seconds, start - session.started))
        active = active_frames.frames
        active.append(self.cache.frame.id)
        try:
            return spread(self.entry_function(entry), *values)
        finally:
            active.pop()

    def _record_hit(
        self, values: tuple[Any, ...], session: Session, entry: CacheEntry, facts: tuple[list[str], float, float]
    ) -> None:
        """Record a hit, with its arguments if the call before it had another entry."""
        recorded = self.cache.recorded_hit
        named = self.named_arguments(values) if self.item_names else None
        call_values = values if named is None else (*named.values(),)
        if (
            recorded is not None
            and (named is None or recorded.names == (*named,))
            and recorded.entry == entry.id
            and recorded.session() is session
            and recorded.dispatcher() is self
        ):
            if not session.drop_hit():  # before anything is described
                session.add_hit(RecordedHit(recorded, call_values, facts))
            return
        record_frame(session, self.cache)
        arguments = self.arguments(values)
        names = (*(arguments if named is None else named),)
        recorded = HitDescription(weakref.ref(session), weakref.ref(self), self.cache.frame.id, entry.id, names)
        index = -1 if session.drop_hit() else session.add_hit(RecordedHit(recorded, call_values, facts))
        record_arguments(session, self, index, entry.id, arguments, keep_beyond_next=False)
        self.cache.recorded_hit = recorded

    def _record_miss(
        self, values: tuple[Any, ...], session: Session, entry: CacheEntry | None, checked: list[str], seconds: float
    ) -> CacheEntry:
        """Record a call that compiles, or runs ``entry`` as Python; return the entry to run."""
        record_frame(session, self.cache)
        rejections: tuple[GuardFailure, ...] = ()
        outcome = "hit"
        if entry is None:
            entry, rejections = self._compile(values, session)
            outcome = "compiled"
        recorded_outcome = "python" if entry.runs_python else outcome
        arguments = self.arguments(values)
        with DisableTorchFunction():
            named = self.named_arguments(values)
            index = record_call(session, self.cache, recorded_outcome, entry.id, named, checked, rejections, seconds)
            record_arguments(session, self, index, entry.id, arguments, keep_beyond_next=outcome != "hit")
        self.cache.recorded_hit = None
        return entry

    def _look_up(self, values: tuple[Any, ...]) -> tuple[CacheEntry | None, list[str]]:
        """Return the entry whose guards pass, and the ids of the entries checked, in order."""
        cells = self.function.__closure__ or ()
        if len(self.entries) == 1 and skips_guards():
            return self.entries[0], []
        order = self._lookup_order if self._version == self.cache.version else self.entries
        if order and order[0].check(cells, *values):
            return order[0], [order[0].id]
        checked = [order[0].id] if order else []
        for entry in order[1:]:
            checked.append(entry.id)
            if entry.check(cells, *values):
                self.promote(entry)
                return entry, checked
        return self.cache.python_entry, checked

    def arguments(self, values: tuple[Any, ...]) -> dict[str, Any]:
        """Return the values by parameter name."""
        return dict(zip(signature_of(self.function.__code__).parameters.names, values, strict=True))

    def named_arguments(self, values: tuple[Any, ...]) -> dict[str, Any]:
        """Return the values by parameter name; a wrapper's by those of the wrapped function."""
        return name_arguments(self.arguments(values), self.item_names)

    def scope(self, values: tuple[Any, ...]) -> FrameScope:
        """Return the scope that guard sources are read from, for a call with these values."""
        cells = zip(self.function.__code__.co_freevars, self.function.__closure__ or (), strict=True)
        return FrameScope(self.arguments(values), dict(cells))

    # Compiling.

    def _compile(self, values: tuple[Any, ...], session: Session | None) -> tuple[CacheEntry, tuple[GuardFailure, ...]]:
        """Return the entry for a call that missed all entries, and their guard failures.

        Raises:
            RecompileForbidden: the stance or a setting of ``torch._dynamo.config`` forbids to compile.
        """
        with COMPILE_LOCK, defer_interrupts(), torch_settings(), limit_graph_sources():
            # Another thread may have compiled a matching entry while this one waited for the lock.
            entry, _ = self._look_up(values)
            if entry is not None:
                return entry, ()
            scope = self.scope(values)
            rejections = self._guard_failures(scope, all_of_them=session is not None)
            cause = nearest_guard_failure(rejections).sentence if rejections else self.cache.first_cause
            if self._stays_eager(scope, cause):
                return self._python_entry(), rejections
            if self._is_at_recompile_limit(values):
                return self._on_recompile_limit(cause, session), rejections
            self.cache.last_cause = cause
            with compile_callbacks(f"{self.cache.frame.id}/{self.cache.compile_count}"):
                return self._compile_entry(values, scope, cause, session), rejections

    def _stays_eager(self, scope: FrameScope, cause: str) -> bool:
        """Return True if the user's stance leaves this call to Python."""
        stance = follow_stance()
        if stance == "fail_on_recompile" or (self.cache.entries and changed_setting("error_on_recompile")):
            name = stance if stance == "fail_on_recompile" else "error_on_recompile"
            raise RecompileForbidden(self.cache.frame.name, name, cause)
        if stance in EAGER_FIRST and self.cache.frame.role != "resume":
            return not self.cache.entries and self.cache.is_first_call(scope)
        return stance == "eager_on_recompile"

    @property
    def _recompile_limit(self) -> int:
        own = self.compiler.options.recompile_limit
        limit = config.recompile_limit if own is None else own
        return min(limit, changed_setting("accumulated_recompile_limit") or limit)

    def _is_at_recompile_limit(self, values: tuple[Any, ...]) -> bool:
        limit = self._recompile_limit
        total_limit = changed_setting("accumulated_recompile_limit") or max(limit, MAX_COMPILES)
        return self.cache.compiles_towards_limit(values) >= limit or self.cache.compiles_since_clear >= total_limit

    def _guard_failures(self, scope: FrameScope, *, all_of_them: bool) -> tuple[GuardFailure, ...]:
        entries = self.entries if all_of_them else self.entries[:1]
        return tuple(filter(None, [self.guard_failure(e, scope) for e in entries]))

    def guard_failure(self, entry: CacheEntry, scope: FrameScope) -> GuardFailure | None:
        """Return the guard failure of an entry for a call; None if all guards pass."""
        failure = self.compiler.guard_queries.failure(entry, scope)
        after = self.cache.frame.resumes_after
        if failure is None or after is None:
            return failure
        if STACK_VALUE_TEXT not in failure.sentence:
            is_local = failure.kind in ("dispatch keys", "requires_grad", "shape", "stride") and not failure.is_expected
            removal = Fix(f"Remove the graph break at line {after.line}: tensors that cross it are guarded")
            return replace(failure, fixes=(removal, *failure.fixes)) if is_local else failure
        # Only resume functions have such a value. It has no name, so there is no code to fix it with.
        is_loop = any(text in failure.sentence for text in LOOP_TEXTS)
        where = f"{LOOP_VALUE_TEXT if is_loop else STACK_VALUE_TEXT} at line {after.line}"
        fix = (
            "Move the graph break out of the loop"
            if is_loop
            else f"Remove the graph break at line {after.line}: Python values that cross it are guarded"
        )
        return replace(failure, sentence=failure.sentence.replace(STACK_VALUE_TEXT, where), fixes=(Fix(fix),))

    def _compile_entry(
        self, values: tuple[Any, ...], scope: FrameScope, cause: str, session: Session | None
    ) -> CacheEntry:
        cache = self.cache
        if config.automatic_dynamic:
            mark_changed_dims(cache, scope)
        request = CompileRequest(
            self.function,
            self.arguments(values),
            cache.frame.id,
            cache.compile_count,
            cause,
            cache.dynamic_dims,
            self.item_names,
        )
        cache.compile_count += 1
        _compiling.is_compiling = True
        try:
            with force_slow_dispatch():
                entry = self.compiler.compile_frame(request)
        except EngineError:
            raise
        except Exception as error:
            return self._on_compile_failure(error, session)
        finally:
            _compiling.is_compiling = False
        cache.count_compile(values)
        if entry.check(self.function.__closure__ or (), *values):
            cache.insert(entry)
            self._sync()
        elif session is not None:
            reason = self.guard_failure(entry, scope)
            sentence = f"A guard of {cache.frame.name} fails for the call it was compiled for: {reason.sentence if reason else 'the reason is unknown'}"
            session.add_failure(StageFailure("guards", sentence, "the result is correct, but the next call recompiles"))
        return entry

    def _on_compile_failure(self, error: Exception, session: Session | None) -> CacheEntry:
        """Handle an internal error: this call runs as Python, and all calls do after a few errors."""
        if self.compiler.options.fullgraph:
            raise error
        sentence = f"Compiling {self.cache.frame.name} failed: {type(error).__name__}: {error}"
        if session is not None:
            detail = "".join(traceback.format_exception(error))
            session.add_failure(StageFailure("runtime", sentence, "the function ran as Python", detail))
        self.cache.failure_count += 1
        entry = self._python_entry()
        if self.cache.failure_count >= MAX_FAILURES:
            self.cache.fall_back_to_python(entry)
            self._sync()
        return entry

    def _on_recompile_limit(self, cause: str, session: Session | None) -> CacheEntry:
        """Handle the recompile limit: later cache misses run as Python, or raise with fullgraph."""
        name, limit = self.cache.frame.name, self._recompile_limit
        if self.compiler.options.fullgraph or changed_setting("fail_on_recompile_limit_hit"):
            raise RecompileLimit(name, limit, cause, (Span(self.cache.frame.file, self.cache.frame.first_line),))
        entry = self._python_entry()
        reason = f"compiled {limit} times, which is the recompile limit; calls without a cache hit run as Python. The last reason was: {cause.rstrip('.')}"
        self.cache.fall_back_to_python(entry)
        self._sync()
        if session is not None:
            session.add_skipped(
                SkippedRecord(name, reason, "Remove this cause, or raise engine.config.recompile_limit.")
            )
        return entry

    def _python_entry(self) -> CacheEntry:
        """Return an entry that runs the user's code as Python, with callees still dispatched."""
        code = self.function.__code__
        try:
            code = intercept_calls(code, self.compiler.dispatch_callee)
        except Exception:
            # Code that cannot be rewritten still runs, but its callees are not compiled.
            code = self.function.__code__
        return CacheEntry(f"{self.cache.frame.id}/python", code, (), _return_true, "", runs_python=True)

    # Generators and coroutines.

    def run_uncompiled(self, values: tuple[Any, ...]) -> Any:
        """Start a generator or coroutine as Python; record the reason."""
        session = current_session()
        if session is not None:
            record_frame(session, self.cache)
            session.add_skipped(skipped_record(self.function))
        if self.cache.python_entry is None:
            self.cache.python_entry = self._python_entry()
        return signature_of(self.function.__code__).call_positional(
            self.entry_function(self.cache.python_entry), *values
        )


_GENERATOR_FLAGS = inspect.CO_GENERATOR | inspect.CO_COROUTINE


def skipped_record(function: FunctionType) -> SkippedRecord:
    """Return the record of why a generator, a coroutine or a disabled function is skipped."""
    flags = function.__code__.co_flags
    kind = "asynchronous" if flags & (inspect.CO_COROUTINE | inspect.CO_ASYNC_GENERATOR) else "disabled"
    kind = "a generator" if flags & inspect.CO_GENERATOR else kind
    hint = "Move the tensor code into a plain function and call it: that function is compiled."
    return SkippedRecord(function.__qualname__, f"{function.__qualname__} is {kind}, and runs as Python", hint)


def _return_true(*values: Any) -> bool:
    return True


def mark_changed_dims(cache: CodeCache, scope: FrameScope) -> None:
    """Mark sizes and numbers that differ from the entries' as dynamic for the next compile."""
    values: dict[Any, Any] = {}
    for entry in cache.entries:
        for guard in entry.guards:
            if not guard.reports_changed_dims:
                continue
            for source in guard.sources:
                if source not in values:
                    values[source] = None
                    with contextlib.suppress(Exception):
                        values[source] = source.resolve(scope)
            changed = guard.changed_dims(values[guard.source], tuple(values[s] for s in guard.sources[1:]))
            if -1 in changed and is_number_static(values[guard.source]):
                changed -= {-1}
            if changed:
                cache.mark_dynamic_dims(guard.dynamic_expr, changed)


_dispatcher_states: WeakTable[FunctionType, weakref.ref[DispatcherState]] = WeakTable()
"""State of each dispatcher, which holds it.

A table that held it would keep a dispatcher in the function's own globals alive.
"""
_generator_states: WeakTable[FunctionType, DispatcherState] = WeakTable()
"""States of dispatchers that run the user's own code, and so hold none."""


_resume_states: WeakTable[DispatcherState, None] = WeakTable()
"""States of live dispatchers of resume functions."""


def dispatcher_state_of(function: Any) -> DispatcherState | None:
    """Return the state of a dispatcher function; None for any other object."""
    state = _dispatcher_states.get(function) if type(function) is FunctionType else None
    return None if state is None else state()


def live_states() -> tuple[DispatcherState, ...]:
    """Return the states of all live dispatchers."""
    return tuple(state for reference in tuple(_dispatcher_states.values()) if (state := reference()) is not None)


def reset() -> None:
    """Clear all code caches of all compilers."""
    with COMPILE_LOCK:
        states = live_states()
        for cache in {*all_caches(), *(state.cache for state in states)}:
            cache.clear()
        drop_unused_caches()
        clear_symbol_caches()
        # Dispatchers of resume functions are not in this table: only code that was just removed reaches them.
        for state in states:
            state.refresh()


@contextlib.contextmanager
def _switch_pass_set() -> Iterator[None]:
    """Exchange the cache entries after a change of the registered passes in the block."""
    with COMPILE_LOCK:
        yield
        states = (*live_states(), *_resume_states)
        for cache in {*all_caches(), *(state.cache for state in states)}:
            cache.switch_pass_set()
        for state in states:
            state.refresh()


active_passes.around_change = _switch_pass_set


def make_dispatcher(
    function: FunctionType,
    compiler: Compiler,
    role: str = "root",
    parent: str = "",
    after: Span | None = None,
    dynamic_dims: Mapping[str, frozenset[int]] = MappingProxyType({}),
) -> FunctionType:
    """Return a function with ``function``'s signature that runs compiled code.

    Args:
        function: any Python function. A dispatcher is unwrapped first. A function marked by ``engine.disable`` is
            returned unchanged.
        compiler: compiles on a cache miss.
        role: the frame's role in records: "root", "callee", "resume" or "cell".
        parent: for "resume", the id of the frame with the graph break.
        after: for "resume", the span of the instruction at which the graph broke.
        dynamic_dims: dimensions of the arguments that are known to vary, by source expression.
    """
    if role != "resume":  # a resume function is neither a dispatcher nor marked
        function = unwrap_compiled(function)
        skipped = skipped_frame(function)
        if skipped is not None:
            return _python_dispatcher(skipped, compiler, role)
        if is_disabled(function):
            return function
        if is_traced_as_one_call(function):
            function = make_calling_frame(function)
    flags = function.__code__.co_flags
    if flags & inspect.CO_ASYNC_GENERATOR or (flags & _GENERATOR_FLAGS and role != "root"):
        return _python_dispatcher(function, compiler, role)
    cache = caches_of(compiler).cache_of(function, role, parent, after)
    for expr, dims in dynamic_dims.items():
        cache.mark_dynamic_dims(expr, dims)
    state = DispatcherState(function, compiler, cache)
    dispatch = state.make_dispatcher_function()
    if role == "resume":
        # Created at each graph break and never visible to users, so it needs no metadata.
        _resume_states[state] = None
        return dispatch
    if role == "root" and compiler.root_wrapper is not None:
        dispatch = cast("FunctionType", compiler.root_wrapper(dispatch))
    copy_metadata(dispatch, function)
    DISPATCHER_ORIGINALS[dispatch] = weakref.ref(function)
    _dispatcher_states[dispatch] = weakref.ref(state)
    return dispatch


class ResumeDispatcherFactory:
    """Makes what calls a resume function, with the cells of the frame that broke.

    One per resume point, called once per graph break.
    """

    __slots__ = ("_after", "_cache", "_compiler", "_dynamic_dims", "_parent")

    def __init__(
        self, compiler: Compiler, parent: str, after: Span | None, dynamic_dims: Mapping[str, frozenset[int]]
    ) -> None:
        self._compiler = compiler
        self._parent = parent
        """Id of the frame with the graph break."""
        self._after = after
        """Span of the instruction at which the graph broke."""
        self._dynamic_dims = dynamic_dims
        self._cache: Callable[[], CodeCache | None] = _return_none
        """Weak: the garbage collector does not traverse code, which holds this object."""

    def __call__(self, function: FunctionType) -> Run:
        """Return what calls ``function``, whose code is this resume function's."""
        return partial(self._dispatch, function)

    def _dispatch(self, function: FunctionType, *values: Any) -> Any:
        """Run the entry whose guards pass.

        Without one, or on the slow path, make a dispatcher and call it.
        """
        try:
            cache = self._cache()
            if cache is not None and cache.python_entry is None and takes_fast_path():
                cells = function.__closure__
                for entry in cache.entries:
                    if entry.check(cells, *values):
                        caches_of(self._compiler).mark_used(cache)
                        return bind_entry(entry, function)(*values)
            return self.dispatcher(function)(*values)
        except BaseException as error:
            strip_dispatch_frames(error)
            raise

    def dispatcher(self, function: FunctionType) -> FunctionType:
        """Return the dispatcher of ``function``, whose code is this resume function's."""
        made = make_dispatcher(function, self._compiler, "resume", self._parent, self._after, self._dynamic_dims)
        cache = caches_of(self._compiler).cache_of_code(function.__code__, function.__globals__)
        self._cache = _return_none if cache is None else weakref.ref(cache)
        return made


def _return_none() -> None:
    """Return None, as a weak reference to a freed cache does."""


def _python_dispatcher(function: FunctionType, compiler: Compiler, role: str) -> FunctionType:
    """Return a function that runs a generator's or skipped function's own code.

    Its callees are dispatched. A delegating wrapper would appear in ``gi_yieldfrom`` and tracebacks, and would lose
    ``asend`` and ``athrow``.
    """
    session = current_session()
    cache = caches_of(compiler).cache_of(function, role)
    state = DispatcherState(function, compiler, cache)
    if session is not None:
        record_frame(session, cache)
        session.add_skipped(skipped_record(function))
    if cache.python_entry is None:
        cache.python_entry = state._python_entry()
    dispatch = FunctionType(
        cache.python_entry.code, function.__globals__, function.__name__, function.__defaults__, function.__closure__
    )
    copy_metadata(dispatch, function)
    _generator_states[dispatch] = state
    DISPATCHER_ORIGINALS[dispatch] = weakref.ref(function)
    _dispatcher_states[dispatch] = weakref.ref(state)
    return dispatch
