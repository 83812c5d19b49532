"""Argument counts of C callables."""

from __future__ import annotations

import builtins
import collections
import functools
import inspect
import itertools
import sys
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from typing import Any

_UNBOUNDED = 10_000


@dataclass(frozen=True)
class Arity:
    """Number of arguments that a callable accepts.

    ``min_count`` to ``max_count`` in all, at most ``max_positional`` by position. ``keyword_names`` are the allowed
    keywords; None allows any.
    """

    min_count: int
    max_count: int
    max_positional: int
    keyword_names: frozenset[str] | None = frozenset()

    def accepts(self, count: int, keywords: Collection[str]) -> bool:
        """Return True if a call with ``count`` positional arguments and these keywords can bind."""
        if self.keyword_names is None:
            return self.min_count <= count <= self.max_positional
        return (
            self.min_count <= count + len(keywords) <= self.max_count
            and count <= self.max_positional
            and self.keyword_names >= set(keywords)
        )


_POSITIONAL_ONLY = """
    0 1 bool float list tuple set frozenset vars dir
    0 2 super
    1 1 reversed itertools.cycle itertools.pairwise
    1 1 deque.pop deque.popleft deque.clear deque.reverse dict.clear dict.copy dict.keys dict.values dict.items
    1 1 set.clear set.copy set.pop frozenset.copy
    1 2 iter next itertools.tee deque.rotate
    1 3 range slice
    1 * set.update set.union set.intersection set.difference
    1 * frozenset.union frozenset.intersection frozenset.difference
    2 2 filter itertools.takewhile itertools.dropwhile itertools.filterfalse itertools.starmap
    2 2 deque.append deque.appendleft deque.extend deque.extendleft deque.count deque.remove
    2 2 list.__getitem__ dict.__getitem__ set.__contains__ frozenset.__contains__
    2 2 set.add set.discard set.remove set.issubset set.issuperset set.isdisjoint set.symmetric_difference
    2 2 set.symmetric_difference_update
    2 2 frozenset.issubset frozenset.issuperset frozenset.isdisjoint frozenset.symmetric_difference
    2 3 getattr dict.pop
    2 4 itertools.islice deque.index
    2 * map
    3 3 deque.insert
"""
"""Callables without keywords for which ``inspect.signature`` fails.

A line holds the least and the largest number of arguments, with ``self``, and the callables.
"""

_WITH_KEYWORDS = """
    0 2 complex real imag
    0 2 deque iterable maxlen
    0 2 itertools.count start step
    0 3 str object encoding errors
    1 2 enumerate iterable start
    1 2 itertools.groupby iterable key
    1 2 itertools.permutations iterable r
    1 2 itertools.repeat object times
    2 2 itertools.combinations iterable r
    2 2 itertools.combinations_with_replacement iterable r
    2 2 itertools.compress data selectors
"""
"""Other such callables, each with the keywords that it allows."""


def _find_callable(path: str) -> Any:
    """Return a builtin, or a member of ``deque``, ``functools`` or ``itertools``, by its name."""
    root, *names = path.split(".")
    modules = {"deque": collections.deque, "functools": functools, "itertools": itertools}
    return functools.reduce(getattr, names, modules.get(root) or getattr(builtins, root))


def _read_arities() -> Iterator[tuple[Any, Arity]]:
    for line in _POSITIONAL_ONLY.strip().splitlines():
        least, most, *paths = line.split()
        count = _UNBOUNDED if most == "*" else int(most)
        yield from ((_find_callable(path), Arity(int(least), count, count)) for path in paths)
    for line in _WITH_KEYWORDS.strip().splitlines():
        least, most, path, *keywords = line.split()
        yield _find_callable(path), Arity(int(least), int(most), int(most), frozenset(keywords))


_KNOWN_ARITIES: dict[Any, Arity] = dict(_read_arities()) | {
    int: Arity(0, 2, 2, frozenset(("base",))),
    functools.reduce: Arity(2, 3, 3, frozenset(("initial",) if sys.version_info >= (3, 14) else ())),
    dict: Arity(0, _UNBOUNDED, 1, None),
    dict.update: Arity(1, _UNBOUNDED, 2, None),
    zip: Arity(0, _UNBOUNDED, _UNBOUNDED, frozenset(("strict",))),
    min: Arity(1, _UNBOUNDED, _UNBOUNDED, frozenset(("key", "default"))),
    max: Arity(1, _UNBOUNDED, _UNBOUNDED, frozenset(("key", "default"))),
    collections.OrderedDict: Arity(0, _UNBOUNDED, 1, None),
    collections.defaultdict: Arity(0, _UNBOUNDED, 2, None),
    itertools.accumulate: Arity(1, 3, 2, frozenset(("iterable", "func", "initial"))),
    itertools.zip_longest: Arity(0, _UNBOUNDED, _UNBOUNDED, frozenset(("fillvalue",))),
    itertools.product: Arity(0, _UNBOUNDED, _UNBOUNDED, frozenset(("repeat",))),
}

_C_MODULES = frozenset(
    ("builtins", "itertools", "collections", "_collections", "_functools", "_heapq", "_operator", "math")
)


def arity_of(real: Any) -> Arity | None:
    """Return the arity of a C callable; None if it is unknown."""
    try:
        arity = _KNOWN_ARITIES.get(real)
    except TypeError:  # not hashable
        return None
    if arity is not None:
        return _read_arity(real) or arity
    if isinstance(real, type) or getattr(real, "__module__", None) not in (*_C_MODULES, None):
        return None
    owner = getattr(real, "__objclass__", None)
    if getattr(real, "__module__", None) is None and (owner is None or owner.__module__ not in _C_MODULES):
        return None
    return _read_arity(real)


@functools.lru_cache(maxsize=2048)
def _read_arity(real: Any) -> Arity | None:
    """Return the arity of a function of a C module, which is never freed."""
    try:
        parameters = inspect.signature(real).parameters.values()
    except (TypeError, ValueError):
        return None
    least = sum(p.default is p.empty and p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD) for p in parameters)
    if any(p.kind is p.VAR_KEYWORD for p in parameters):
        return None
    every = any(p.kind is p.VAR_POSITIONAL for p in parameters)
    by_position = (
        _UNBOUNDED if every else sum(p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD) for p in parameters)
    )
    names = frozenset(p.name for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY))
    return Arity(least, _UNBOUNDED if every else len(parameters), by_position, names)
