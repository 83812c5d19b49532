"""The dispatcher's cache: one per code object and globals, for one compiler. It lives as long as the code object does."""

from __future__ import annotations

import itertools
import threading
import weakref
from collections.abc import Iterable, Mapping
from types import CodeType, FunctionType
from typing import Any

from engine.ir.compiler_protocol import CacheEntry, Compiler
from engine.records.bytecode import Span
from engine.records.session import FrameRecord, Session

_numbers = itertools.count()

COMPILE_LOCK = threading.RLock()
"""Held while a frame is compiled; dispatch never takes it."""


class CodeCache:
    """Entries of one code object, newest first, and what is remembered about it between compiles.

    Readers take ``entries`` once and use what they got; writers replace the tuple while they hold ``COMPILE_LOCK``.
    """

    def __init__(self, function: FunctionType, role: str, parent: str, after: Span | None) -> None:
        code = function.__code__
        self.frame = FrameRecord(
            str(next(_numbers)), function.__qualname__, code.co_filename, code.co_firstlineno, role, parent, after
        )
        self.entries: tuple[CacheEntry, ...] = ()
        self.python_entry: CacheEntry | None = None
        """What every call that no entry admits runs, once the frame is given up; its guards are not checked."""
        self.python_reason = ""
        self.compile_count = 0
        """How often this frame was compiled: the number of the next entry."""
        self.compiles_since_clear = 0
        """Compiles that count towards the recompile limit: those since the cache was last cleared."""
        self.failure_count = 0
        self.last_cause = ""
        self.version = 0
        self.announced_sessions: weakref.WeakSet[Session] = weakref.WeakSet()
        self._dynamic_dims: dict[str, frozenset[int]] = {}
        # Keeps the key of this cache from being used by another dictionary.
        self._globals = function.__globals__

    def insert(self, entry: CacheEntry) -> None:
        """Put a new entry in front."""
        self.entries = (entry, *self.entries)
        self.version += 1

    def fall_back_to_python(self, entry: CacheEntry, why: str) -> None:
        """From now on what the entries do not admit runs as ``entry``."""
        self.python_entry = entry
        self.python_reason = why
        self.version += 1

    def clear(self) -> None:
        """Forget all entries, and that the frame was given up."""
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
        """Dimensions seen to change, by origin (automatic dynamic)."""
        return dict(self._dynamic_dims)

    def mark_dynamic_dims(self, origin: str, dimensions: frozenset[int]) -> None:
        """Remember that these dimensions of an origin change between calls."""
        self._dynamic_dims[origin] = self._dynamic_dims.get(origin, frozenset()) | dimensions


class CompilerCaches:
    """All caches of one compiler, by code object and globals."""

    def __init__(self) -> None:
        self._by_code: dict[tuple[int, int], CodeCache] = {}
        self._lock = threading.RLock()

    def cache_of(self, function: FunctionType, role: str, parent: str = "", after: Span | None = None) -> CodeCache:
        """The cache of a function's code, made when there is none yet."""
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
        """Every cache alive."""
        return tuple(self._by_code.values())


_caches: weakref.WeakKeyDictionary[Any, CompilerCaches] = weakref.WeakKeyDictionary()


def caches_of(compiler: Compiler) -> CompilerCaches:
    """The caches of one compiler."""
    found = _caches.get(compiler)
    return _caches.setdefault(compiler, CompilerCaches()) if found is None else found


def all_caches() -> Iterable[CodeCache]:
    """Every cache of every compiler alive."""
    return tuple(cache for caches in tuple(_caches.values()) for cache in caches.all())


def cache_of_code(compiler: Compiler, code: CodeType, namespace: dict[str, Any]) -> CodeCache | None:
    """The cache of a code object, None when it was never dispatched."""
    return caches_of(compiler)._by_code.get((id(code), id(namespace)))
