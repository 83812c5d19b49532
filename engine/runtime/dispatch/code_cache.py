"""Code caches: the cache entries of one code object with one globals dict, per compiler.

A cache lives while a dispatcher references it or it is one of the most recently used, and no longer than its code
object.
"""

from __future__ import annotations

import itertools
import weakref
from collections.abc import Iterable, Mapping
from functools import partial
from types import CodeType, FunctionType
from typing import Any

import torch

from engine.interrupts.weak_tables import WeakTable
from engine.ir.compiler_protocol import CacheEntry, Compiler
from engine.ir.pass_set import active_passes
from engine.ir.sources.base import FrameScope
from engine.ir.sources.roots import LocalSource
from engine.ir.unwrap_compiled import unwrap_compiled
from engine.process_state import make_rlock
from engine.records.bytecode import Span
from engine.records.session import FrameRecord, Session

_numbers = itertools.count()

COMPILE_LOCK = make_rlock()
"""Held while a frame is compiled; dispatch never takes it."""


FIRST_CALL_CAUSE = "first call"
OTHER_PASSES_CAUSE = "the registered passes changed"
MAX_PASS_SETS = 4
"""Maximum number of sets of registered passes whose entries a cache holds."""


class CodeCache:
    """Cache entries of one code object, newest first, and its state between compiles.

    They are looked up by the passes that users registered. Readers read ``entries`` once and use that tuple. Writers replace the tuple while they hold ``COMPILE_LOCK``.
    """

    def __init__(self, function: FunctionType, role: str, parent: str, after: Span | None) -> None:
        code = function.__code__
        self.code = weakref.ref(code)
        """Drops the cache from those used last when the code object is freed."""
        self.frame = FrameRecord(
            str(next(_numbers)), function.__qualname__, code.co_filename, code.co_firstlineno, role, parent, after
        )
        self._entries_by_passes: dict[str, tuple[CacheEntry, ...]] = {}
        self.python_entry: CacheEntry | None = None
        """Entry that runs on a cache miss once the frame is given up; its guards are not checked."""
        self.compile_count = 0
        """Compiles of this frame so far; also the index of the next entry."""
        self.compiles_since_clear = 0
        """Compiles since the last clear; they count towards the recompile limit."""
        self._compiles_by_module: WeakTable[torch.nn.Module, int] = WeakTable()
        """Compiles by the module whose method was called, of modules that are alive."""
        self.failure_count = 0
        self.last_cause = ""
        self.version = 0
        self.recorded_hit: Any = None
        """Description of the last recorded hit, which the next one of the same entry shares."""
        self.announced_sessions: WeakTable[Session, None] = WeakTable()
        self._dynamic_dims: dict[str, frozenset[int]] = {}
        self._first_shapes: dict[str, tuple[int, ...]] | None = None
        """Shapes of the arguments of a first call that ran eagerly, by source expression."""
        # Holds the globals dict, so that its id, a part of the cache's key, is not reused.
        self._globals = function.__globals__

    def is_replaced_by(self, function: FunctionType) -> bool:
        """Return True if ``function`` is this cache's function, defined again by a rerun cell.

        Functions of the same name at other lines of a file, such as getter and setter, do not replace each other.
        """
        code, frame = function.__code__, self.frame
        is_namesake = frame.role != "resume" and frame.name == function.__qualname__
        is_same_place = (code.co_filename, code.co_firstlineno) == (frame.file, frame.first_line)
        return (
            is_namesake and self._globals is function.__globals__ and (is_same_place or code.co_filename != frame.file)
        )

    def insert(self, entry: CacheEntry) -> None:
        """Insert a new entry at the front."""
        self._entries_by_passes[active_passes.key] = (entry, *self.entries)
        self.version += 1

    @property
    def entries(self) -> tuple[CacheEntry, ...]:
        """Entries that were compiled with the passes that are registered now, newest first."""
        return self._entries_by_passes.get(active_passes.key, ())

    @property
    def first_cause(self) -> str:
        """Why a call misses if there is no entry to reject it."""
        return OTHER_PASSES_CAUSE if any(self._entries_by_passes.values()) else FIRST_CALL_CAUSE

    def switch_pass_set(self) -> None:
        """Use the entries of the passes that are registered now; forget those of old sets."""
        for key in [k for k in self._entries_by_passes if k][:-MAX_PASS_SETS]:
            del self._entries_by_passes[key]
        self.compiles_since_clear = len(self.entries)
        self._compiles_by_module.clear()
        self.version += 1

    def count_compile(self, values: tuple[Any, ...]) -> None:
        """Count a compile for a call with these arguments towards the recompile limit."""
        self.compiles_since_clear += 1
        module = self._called_module(values)
        if module is not None:
            self._compiles_by_module[module] = self._compiles_by_module.get(module, 0) + 1

    def compiles_towards_limit(self, values: tuple[Any, ...]) -> int:
        """Return how many compiles count against a call with these arguments.

        Modules of one class share a cache: compiles for other modules that are alive are no recompiles of this one.
        """
        module = self._called_module(values)
        if module is None:
            return self.compiles_since_clear
        others = sum(count for other, count in self._compiles_by_module.items() if other is not module)
        return self.compiles_since_clear - others

    @staticmethod
    def _called_module(values: tuple[Any, ...]) -> torch.nn.Module | None:
        """Return the module whose method is called; None for other functions."""
        subject = unwrap_compiled(values[0]) if values else None
        return subject if issubclass(type(subject), torch.nn.Module) else None

    def fall_back_to_python(self, entry: CacheEntry) -> None:
        """Run ``entry`` on every cache miss from now on."""
        self.python_entry = entry
        self.version += 1

    def clear(self) -> None:
        """Remove all entries and forget that the frame was given up."""
        self._entries_by_passes.clear()
        self.python_entry = None
        self.compiles_since_clear = 0
        self._compiles_by_module.clear()
        self.failure_count = 0
        self.last_cause = ""
        self._dynamic_dims.clear()
        self._first_shapes = None
        self.version += 1

    def is_first_call(self, scope: FrameScope) -> bool:
        """Return True at the first call; at a later one, mark changed sizes as dynamic."""
        arguments = {LocalSource(name).expr: value for name, value in scope.arguments.items()}
        shapes = {expr: (*value.shape,) for expr, value in arguments.items() if torch.is_tensor(value)}
        first, self._first_shapes = self._first_shapes, shapes
        for expr, shape in shapes.items():
            before = (first or shapes).get(expr, shape)
            if len(before) == len(shape) and before != shape:
                self.mark_dynamic_dims(expr, frozenset(d for d, n in enumerate(shape) if before[d] != n))
        return first is None

    @property
    def dynamic_dims(self) -> Mapping[str, frozenset[int]]:
        """Dimensions that changed between calls, by source expression (automatic dynamic)."""
        return dict(self._dynamic_dims)

    def mark_dynamic_dims(self, origin: str, dimensions: frozenset[int]) -> None:
        """Mark dimensions of a source as changing between calls."""
        self._dynamic_dims[origin] = self._dynamic_dims.get(origin, frozenset()) | dimensions


MAX_RECENT_CACHES = 256
"""Maximum number of caches of a compiler that are held without a live dispatcher."""


class CompilerCaches:
    """All code caches of one compiler, by code object and globals.

    A dispatcher references its cache. The most recently used caches are also referenced here, because a program may
    create the dispatcher of a function again at each call. Their number is limited: the guards of a cache reference
    classes and globals, which reference the function, so that classes of a rerun notebook cell would never be freed.
    """

    def __init__(self) -> None:
        self._by_code: WeakTable[CodeType, dict[int, weakref.ref[CodeCache]]] = WeakTable()
        """Caches of a code object by the id of the globals, which the cache holds."""
        self._recent: dict[int, CodeCache] = {}
        """Caches by id, least recently used first."""
        self._lock = make_rlock()

    def cache_of(self, function: FunctionType, role: str, parent: str = "", after: Span | None = None) -> CodeCache:
        """Return the cache of a function's code; create it if there is none."""
        code = function.__code__
        with self._lock:
            cache = self.cache_of_code(code, function.__globals__)
            if cache is None:
                if role != "resume":  # resume functions have the name of what they resume
                    self._drop_replaced(function)
                cache = CodeCache(function, role, parent, after)
                cache.code = weakref.ref(code, partial(self._recent.pop, id(cache)))
                alive = {g: r for g, r in self._by_code.get(code, {}).items() if r() is not None}
                self._by_code[code] = {**alive, id(function.__globals__): weakref.ref(cache)}
            self.mark_used(cache)
            if len(self._recent) > MAX_RECENT_CACHES:
                self._recent.pop(next(iter(self._recent)), None)
        return cache

    def mark_used(self, cache: CodeCache) -> None:
        """Make a cache the most recently used one."""
        with self._lock:
            self._recent[id(cache)] = self._recent.pop(id(cache), cache)

    def _drop_replaced(self, function: FunctionType) -> None:
        """Drop the caches of functions that this one replaces, because its cell was rerun."""
        if "<" not in function.__qualname__:  # neither a lambda nor a nested function
            for cache in tuple(self._recent.values()):
                if cache.is_replaced_by(function):
                    self._recent.pop(id(cache), None)

    def clear_recent(self) -> None:
        """Drop the caches that no live dispatcher has."""
        with self._lock:
            self._recent.clear()

    def cache_of_code(self, code: CodeType, namespace: dict[str, Any]) -> CodeCache | None:
        """Return the cache of a code object; None if it was never dispatched."""
        cache = self._by_code.get(code, {}).get(id(namespace))
        return None if cache is None else cache()

    def all(self) -> Iterable[CodeCache]:
        """Return all live code caches of this compiler."""
        all_caches = (reference() for caches in self._by_code.values() for reference in caches.values())
        return tuple(cache for cache in all_caches if cache is not None)


_caches: WeakTable[Any, CompilerCaches] = WeakTable()


def caches_of(compiler: Compiler) -> CompilerCaches:
    """Return the code caches of one compiler, created at the first use."""
    caches = _caches.get(compiler)
    return _caches.setdefault(compiler, CompilerCaches()) if caches is None else caches


def all_caches() -> Iterable[CodeCache]:
    """Return all live code caches of all compilers."""
    return tuple(cache for caches in tuple(_caches.values()) for cache in caches.all())


def cache_of_code(compiler: Compiler, code: CodeType, namespace: dict[str, Any]) -> CodeCache | None:
    """Return the cache of a code object; None if it was never dispatched."""
    return caches_of(compiler).cache_of_code(code, namespace)


def drop_unused_caches() -> None:
    """Drop the caches that no live dispatcher has."""
    for caches in tuple(_caches.values()):
        caches.clear_recent()
