"""The dispatcher: a function with the user's signature that runs the cache entry whose check admits the call, and compiles one when none does."""

from __future__ import annotations

import inspect
import threading
import time
import traceback
import weakref
from collections.abc import Callable, MutableMapping
from dataclasses import replace
from types import FunctionType
from typing import Any, cast

import torch

from engine.bytecode.route import route_calls
from engine.errors import EngineError, RecompileLimit
from engine.ir.context import paying_attention
from engine.ir.frame import CompiledFrame, Compiler, FrameRequest
from engine.ir.guard import CARRIED
from engine.ir.marks import ORIGINALS, is_disabled, original
from engine.ir.origin import Scope
from engine.options import config
from engine.records.bytecode import Span
from engine.records.guards import Fix, Rejection
from engine.records.runtime import Failure, Skipped
from engine.records.session import Session
from engine.runtime.cache import COMPILE_LOCK, CodeCache, all_caches, caches_of
from engine.runtime.observed import observe
from engine.runtime.recording import announce, running, tell_call
from engine.runtime.signature import dress, make, shape_of

__all__ = ["Dispatch", "dispatch_of", "dispatcher", "original"]

FIRST_CALL = "first call"
FAILURES = 2
"""Failures of ours on one frame before it is left to Python for good."""

Run = Callable[..., Any]


class _Compiling(threading.local):
    """Whether this thread is compiling: compiled code called from there runs as plain Python."""

    def __init__(self) -> None:
        self.now = False


_compiling = _Compiling()
_order_lock = threading.Lock()
"""Held for the few instructions that replace a dispatcher's pairs; a call that finds it taken goes on without reordering."""


class _Runnable:
    """One entry as a function of one dispatcher."""

    __slots__ = ("_promoting", "entry", "run")

    def __init__(self, entry: CompiledFrame, run: Run) -> None:
        self.entry = entry
        self.run = run
        self._promoting: Run | None = None

    def promoting(self, owner: Dispatch) -> Run:
        """``run``, which first moves its entry to the front."""
        if self._promoting is None:
            # Weak: a cycle would keep the cells of a resumed frame, and the tensors in them, until the next collection.
            self._promoting = _promoting(weakref.ref(owner), self.entry, self.run)
        return self._promoting


def _promoting(owner: weakref.ref[Dispatch], entry: CompiledFrame, run: Run) -> Run:
    def promoting(*args: Any, **kwargs: Any) -> Any:
        state = owner()
        if state is not None:
            state.promote(entry)
        return run(*args, **kwargs)

    return promoting


class Dispatch:
    """The state behind one dispatching function: one user function (its cells) and the cache of its code."""

    __slots__ = ("__weakref__", "_bound", "_order", "_runs", "_version", "cache", "compiler", "function")

    def __init__(self, function: FunctionType, compiler: Compiler, cache: CodeCache) -> None:
        self.function = function
        self.compiler = compiler
        self.cache = cache
        self._order: tuple[CompiledFrame, ...] = ()
        self._runs: dict[int, _Runnable] = {}
        self._version = -1
        self._bound: Any = None

    def start(self) -> FunctionType:
        """The dispatching function, with the entries that the cache has already."""
        dispatch, self._bound = make(self.function, self._entry_point())
        if self.cache.version:
            self._sync()
        return dispatch

    def _entry_point(self) -> Callable[[tuple[Any, ...]], Any]:
        return self.skip if self.function.__code__.co_flags & _RESUMABLE else self.miss

    @property
    def entries(self) -> tuple[CompiledFrame, ...]:
        """Entries in look-up order, most recently hit first."""
        if self._version != self.cache.version:
            self._sync()
        return self._order

    # Order. ``bound`` holds pairs (check, run); the run of all but the first also moves its entry to the front.

    def refresh(self) -> None:
        """Take over that the cache was cleared."""
        if self._bound is not None:
            self._sync()

    def _sync(self) -> None:
        """Take over what was added to the cache since."""
        with _order_lock:
            self._version = self.cache.version
            entries = self.cache.entries
            kept = {id(e) for e in (*entries, self.cache.python)}
            self._runs = {key: made for key, made in self._runs.items() if key in kept}
            alive = set(map(id, entries))
            known = set(map(id, self._order))
            self._arrange((*(e for e in entries if id(e) not in known), *(e for e in self._order if id(e) in alive)))

    def promote(self, entry: CompiledFrame) -> None:
        """Ask this entry first from now on."""
        if self._order and self._order[0] is entry:
            return
        if not _order_lock.acquire(blocking=False):
            return
        try:
            if any(e is entry for e in self._order[1:]):
                self._arrange((entry, *(e for e in self._order if e is not entry)))
        finally:
            _order_lock.release()

    def _arrange(self, order: tuple[CompiledFrame, ...]) -> None:
        self._order = order
        pairs = [(e.check, self._runnable(e).promoting(self) if i else self.run_of(e)) for i, e in enumerate(order)]
        python = self.cache.python
        if python is not None:
            pairs.append((python.check, self.run_of(python)))
        self._bound.cell_contents = tuple(pairs)

    def _runnable(self, entry: CompiledFrame) -> _Runnable:
        found = self._runs.get(id(entry))
        if found is None or found.entry is not entry:
            function = self.function
            run = FunctionType(entry.code, function.__globals__, function.__name__, None, function.__closure__)
            found = self._runs[id(entry)] = _Runnable(entry, run)
        return found

    def run_of(self, entry: CompiledFrame) -> Run:
        """The entry's code around this function's own cells."""
        return self._runnable(entry).run

    # The careful path.

    def miss(self, values: tuple[Any, ...]) -> Any:
        """Serve a call that the fast path did not; ``values`` are the parameters' in ``co_varnames`` order."""
        spread = shape_of(self.function.__code__).spread
        if _compiling.now:
            return spread(self.function, *values)
        session = self.compiler.session()
        if session is None:
            entry, _ = self._look_up(values)
            run = self.run_of(entry or self._compile(values, None)[0])
            return spread(run, *values)
        return self._recorded(values, session, spread)

    def _recorded(self, values: tuple[Any, ...], session: Session, spread: Run) -> Any:
        announce(session, self.cache)
        start = time.perf_counter()
        entry, asked = self._look_up(values)
        seconds = time.perf_counter() - start
        rejections: tuple[Rejection, ...] = ()
        outcome = "hit"
        if entry is None:
            entry, rejections = self._compile(values, session)
            outcome = "compiled"
        told = "python" if entry.is_python else outcome
        arguments = self.arguments(values)
        with torch._C.DisableTorchFunction():
            index = tell_call(session, self.cache, told, entry.id, arguments, asked, rejections, seconds)
            observe(session, self, index, entry.id, arguments, keep=outcome != "hit")
        running.frames.append(self.cache.frame.id)
        try:
            return spread(self.run_of(entry), *values)
        finally:
            running.frames.pop()

    def _look_up(self, values: tuple[Any, ...]) -> tuple[CompiledFrame | None, list[str]]:
        """The entry that admits the call, and the ids of those asked, in order."""
        cells = self.function.__closure__ or ()
        asked = []
        for entry in self.entries:
            asked.append(entry.id)
            if entry.check(cells, *values):
                self.promote(entry)
                return entry, asked
        return self.cache.python, asked

    def arguments(self, values: tuple[Any, ...]) -> dict[str, Any]:
        """Values by parameter name."""
        return dict(zip(shape_of(self.function.__code__).parameters.names, values, strict=True))

    def scope(self, values: tuple[Any, ...]) -> Scope:
        """What guards read from, for a call with these values."""
        cells = zip(self.function.__code__.co_freevars, self.function.__closure__ or (), strict=True)
        return Scope(self.arguments(values), dict(cells))

    # Compiling.

    def _compile(self, values: tuple[Any, ...], session: Session | None) -> tuple[CompiledFrame, tuple[Rejection, ...]]:
        """The entry to run for a call that none admits; why the others did not."""
        with COMPILE_LOCK:
            # Another thread may have compiled what is needed while this one waited.
            entry, _ = self._look_up(values)
            if entry is not None:
                return entry, ()
            scope = self.scope(values)
            rejections = self._rejections(scope, all_of_them=session is not None)
            cause = rejections[0].sentence if rejections else FIRST_CALL
            if self.cache.made >= config.recompile_limit:
                return self._give_up(cause, session), rejections
            self.cache.last_cause = cause
            return self._compiled(values, scope, cause, session), rejections

    def _rejections(self, scope: Scope, *, all_of_them: bool) -> tuple[Rejection, ...]:
        entries = self.entries if all_of_them else self.entries[:1]
        found = (self.rejection(e, scope) for e in entries)
        return tuple(r for r in found if r is not None)

    def rejection(self, entry: CompiledFrame, scope: Scope) -> Rejection | None:
        """Why an entry does not serve a call, in the frame's own terms; None when it does."""
        found = self.compiler.rejection(entry, scope)
        after = self.cache.frame.resumes_after
        if found is None or after is None or CARRIED not in found.sentence:
            return found
        where = f"{CARRIED} at line {after.line}"
        # Code that changes such a value cannot be written by a person: it has no name.
        fixes = tuple(Fix(f.text.replace(CARRIED, where)) for f in found.fixes)
        return replace(found, sentence=found.sentence.replace(CARRIED, where), fixes=fixes)

    def _compiled(self, values: tuple[Any, ...], scope: Scope, cause: str, session: Session | None) -> CompiledFrame:
        cache = self.cache
        if config.automatic_dynamic:
            note_changes(cache, scope)
        request = FrameRequest(
            self.function, self.arguments(values), cache.frame.id, cache.compiled, cause, cache.dynamic
        )
        cache.compiled += 1
        _compiling.now = True
        try:
            with paying_attention():
                entry = self.compiler.compile_frame(request)
        except EngineError:
            raise
        except Exception as error:
            return self._failed(error, session)
        finally:
            _compiling.now = False
        cache.made += 1
        if entry.check(self.function.__closure__ or (), *values):
            cache.insert(entry)
            self._sync()
        elif session is not None:
            why = self.rejection(entry, scope)
            sentence = f"The guards of {cache.frame.name} refuse the very call they were made for: {why.sentence if why else 'nobody knows why'}"
            session.add_failure(Failure("guards", sentence, "the result is right, but the next call compiles again"))
        return entry

    def _failed(self, error: Exception, session: Session | None) -> CompiledFrame:
        """A bug of ours: this call runs as Python, and after a few all do."""
        if self.compiler.options.fullgraph:
            raise error
        sentence = f"Compiling {self.cache.frame.name} failed: {type(error).__name__}: {error}"
        if session is not None:
            detail = "".join(traceback.format_exception(error))
            session.add_failure(Failure("runtime", sentence, "the function ran as Python", detail))
        self.cache.failures += 1
        entry = self._as_python()
        if self.cache.failures >= FAILURES:
            self.cache.leave_to_python(entry, sentence)
            self._sync()
        return entry

    def _give_up(self, cause: str, session: Session | None) -> CompiledFrame:
        """The recompile limit is met."""
        name, limit = self.cache.frame.name, config.recompile_limit
        if self.compiler.options.fullgraph:
            raise RecompileLimit(name, limit, cause, (Span(self.cache.frame.file, self.cache.frame.first_line),))
        entry = self._as_python()
        why = f"{name} was compiled {limit} times, the recompile limit; calls that no entry serves run as Python. The last reason was: {cause}"
        self.cache.leave_to_python(entry, why)
        self._sync()
        if session is not None:
            session.add_skipped(Skipped(name, why, "Remove the cause above, or raise engine.config.recompile_limit."))
        return entry

    def _as_python(self) -> CompiledFrame:
        """The user's code with its calls still dispatched."""
        code = self.function.__code__
        try:
            code = route_calls(code, self.compiler.callee)
        except Exception:
            # Code that cannot be rewritten still runs; only the frames below it are not compiled.
            code = self.function.__code__
        return CompiledFrame(f"{self.cache.frame.id}/python", code, (), _always, "", is_python=True)

    # Generators and coroutines.

    def skip(self, values: tuple[Any, ...]) -> Any:
        """Start a generator or coroutine, as Python, with the reason recorded."""
        session = self.compiler.session()
        if session is not None:
            announce(session, self.cache)
            session.add_skipped(not_compiled(self.function))
        if self.cache.python is None:
            self.cache.python = self._as_python()
        return shape_of(self.function.__code__).spread(self.run_of(self.cache.python), *values)


_RESUMABLE = inspect.CO_GENERATOR | inspect.CO_COROUTINE


def not_compiled(function: FunctionType) -> Skipped:
    """Why a generator or coroutine function is not compiled."""
    flags = function.__code__.co_flags
    kind = "a generator" if flags & inspect.CO_GENERATOR else "asynchronous"
    remedy = "Move the tensor work into a plain function that it calls: that one is compiled."
    return Skipped(function.__qualname__, f"{function.__qualname__} is {kind}, and runs as Python", remedy)


def _always(*values: Any) -> bool:
    return True


def note_changes(cache: CodeCache, scope: Scope) -> None:
    """Remember sizes and numbers that differ from what the entries expect: they become symbols at the next compile."""
    seen: dict[Any, Any] = {}
    for entry in cache.entries:
        for guard in entry.guards:
            if not guard.may_change:
                continue
            if guard.origin not in seen:
                try:
                    seen[guard.origin] = guard.origin.resolve(scope)
                except Exception:
                    seen[guard.origin] = None
            changed = guard.changed(seen[guard.origin])
            if changed:
                cache.saw_change(guard.origin.expr, changed)


_states: MutableMapping[FunctionType, Dispatch] = weakref.WeakKeyDictionary()


def dispatch_of(function: Any) -> Dispatch | None:
    """The state behind a dispatching function; None for any other object."""
    return _states.get(function) if type(function) is FunctionType else None


def reset() -> None:
    """Forget everything compiled so far, in every compiled function."""
    with COMPILE_LOCK:
        for cache in all_caches():
            cache.clear()
        # Resume functions are not among these: they are reached only through code that has just been forgotten.
        for state in tuple(_states.values()):
            state.refresh()


def dispatcher(
    function: FunctionType, compiler: Compiler, role: str = "root", parent: str = "", after: Span | None = None
) -> FunctionType:
    """A function with ``function``'s signature that runs compiled code.

    Args:
        function: any Python function. A dispatcher is unwrapped first; one marked by ``engine.disable`` is returned as it is.
        compiler: compiles what no entry serves.
        role: the frame's role in records: "root", "callee", "resume" or "cell".
        parent: for "resume", the id of the frame that broke.
        after: for "resume", the span of the instruction that it resumes after.
    """
    function = original(function)
    if is_disabled(function):
        return function
    flags = function.__code__.co_flags
    if flags & inspect.CO_ASYNC_GENERATOR or (flags & _RESUMABLE and role != "root"):
        return _resumable(function, compiler, role)
    cache = caches_of(compiler).of(function, role, parent, after)
    state = Dispatch(function, compiler, cache)
    dispatch = state.start()
    if role == "resume":
        # Made anew at each break, and never seen by a person: no more than it needs.
        return dispatch
    if role == "root" and compiler.around is not None:
        dispatch = cast("FunctionType", compiler.around(dispatch))
    dress(dispatch, function)
    ORIGINALS[dispatch] = function
    _states[dispatch] = state
    return dispatch


def _resumable(function: FunctionType, compiler: Compiler, role: str) -> FunctionType:
    """Runs its own code, calls dispatched: a delegation would show in ``gi_yieldfrom`` and tracebacks, and would lose ``asend`` and ``athrow``."""
    session = compiler.session()
    cache = caches_of(compiler).of(function, role)
    state = Dispatch(function, compiler, cache)
    if session is not None:
        announce(session, cache)
        session.add_skipped(not_compiled(function))
    if cache.python is None:
        cache.python = state._as_python()
    dispatch = FunctionType(
        cache.python.code, function.__globals__, function.__name__, function.__defaults__, function.__closure__
    )
    dress(dispatch, function)
    ORIGINALS[dispatch] = function
    _states[dispatch] = state
    return dispatch
