"""Code caches: the cache entries of one code object with one globals dict, per compiler.

A cache lives as long as its code object.
"""

from __future__ import annotations

import itertools
import weakref
from collections.abc import Iterable, Mapping
from types import CodeType, FunctionType
from typing import Any

from engine.ir.compiler_protocol import CacheEntry, Compiler
from engine.process_state import make_rlock
from engine.records.bytecode import Span
from engine.records.session import FrameRecord, Session

_numbers = itertools.count()

COMPILE_LOCK = make_rlock()
"""Held while a frame is compiled; dispatch never takes it."""


class CodeCache:
    """Cache entries of one code object, newest first, and its state between compiles.

    Readers read ``entries`` once and use that tuple. Writers replace the tuple while they hold ``COMPILE_LOCK``.
    """

    def __init__(self, function: FunctionType, role: str, parent: str, after: Span | None) -> None:
        code = function.__code__
        self.frame = FrameRecord(
            str(next(_numbers)), function.__qualname__, code.co_filename, code.co_firstlineno, role, parent, after
        )
        self.entries: tuple[CacheEntry, ...] = ()
        self.python_entry: CacheEntry | None = None
        """Entry that runs on a cache miss once the frame is given up; its guards are not checked."""
        self.python_reason = ""
        self.compile_count = 0
        """Compiles of this frame so far; also the index of the next entry."""
        self.compiles_since_clear = 0
        """Compiles since the last clear; they count towards the recompile limit."""
        self.failure_count = 0
        self.last_cause = ""
        self.version = 0
        self.announced_sessions: weakref.WeakSet[Session] = weakref.WeakSet()
        self._dynamic_dims: dict[str, frozenset[int]] = {}
        # Holds the globals dict, so that its id, a part of the cache's key, is not reused.
        self._globals = function.__globals__

    def insert(self, entry: CacheEntry) -> None:
        """Insert a new entry at the front."""
        self.entries = (entry, *self.entries)
        self.version += 1

    def fall_back_to_python(self, entry: CacheEntry, why: str) -> None:
        """Run ``entry`` on every cache miss from now on; ``why`` is the reason for the record."""
        self.python_entry = entry
        self.python_reason = why
        self.version += 1

    def clear(self) -> None:
        """Remove all entries and forget that the frame was given up."""
        self.entries = ()
        self.python_entry = None
        self.python_reason = ""
        self.compiles_since_clear = 0
        self.failure_count = 0
        self.last_cause = ""
        self._dynamic_dims.clear()
        self.version += 1

    @property
    def dynamic_dims(self) -> Mapping[str, frozenset[int]]:
        """Dimensions that changed between calls, by source expression (automatic dynamic)."""
        return dict(self._dynamic_dims)

    def mark_dynamic_dims(self, origin: str, dimensions: frozenset[int]) -> None:
        """Mark dimensions of a source as changing between calls."""
        self._dynamic_dims[origin] = self._dynamic_dims.get(origin, frozenset()) | dimensions


class CompilerCaches:
    """All code caches of one compiler, by code object and globals."""

    def __init__(self) -> None:
        self._by_code: dict[tuple[int, int], CodeCache] = {}
        self._lock = make_rlock()

    def cache_of(self, function: FunctionType, role: str, parent: str = "", after: Span | None = None) -> CodeCache:
        """Return the cache of a function's code; create it if there is none."""
        code = function.__code__
        key = (id(code), id(function.__globals__))
        found = self._by_code.get(key)
        if found is not None:
            return found
        with self._lock:
            if key not in self._by_code:
                self._by_code[key] = CodeCache(function, role, parent, after)
                weakref.finalize(code, self._by_code.pop, key, None).atexit = False
            return self._by_code[key]

    def all(self) -> Iterable[CodeCache]:
        """Return all live code caches of this compiler."""
        return tuple(self._by_code.values())


_caches: weakref.WeakKeyDictionary[Any, CompilerCaches] = weakref.WeakKeyDictionary()


def caches_of(compiler: Compiler) -> CompilerCaches:
    """Return the code caches of one compiler."""
    found = _caches.get(compiler)
    return _caches.setdefault(compiler, CompilerCaches()) if found is None else found


def all_caches() -> Iterable[CodeCache]:
    """Return all live code caches of all compilers."""
    return tuple(cache for caches in tuple(_caches.values()) for cache in caches.all())


def cache_of_code(compiler: Compiler, code: CodeType, namespace: dict[str, Any]) -> CodeCache | None:
    """Return the cache of a code object; None if it was never dispatched."""
    return caches_of(compiler)._by_code.get((id(code), id(namespace)))
