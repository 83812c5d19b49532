"""Argument counts of C callables.

A mismatch raises Python's TypeError before any rule runs.
"""

from __future__ import annotations

import collections
import functools
import inspect
import itertools
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from engine.trace.variables.base import Args, Kwargs, UserErrors, Variable

if TYPE_CHECKING:
    from engine.trace.tracer import Tracer

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

    def accepts(self, count: int, words: dict[str, Variable]) -> bool:
        """Return True if a call with ``count`` positional arguments and these keywords can bind."""
        if self.keyword_names is None:
            return self.min_count <= count <= self.max_positional
        return (
            self.min_count <= count + len(words) <= self.max_count
            and count <= self.max_positional
            and self.keyword_names >= set(words)
        )


def _arity_between(least: int, most: int, names: str = "") -> Arity:
    return Arity(least, most, most, frozenset(names.split()))


_KNOWN_ARITIES: dict[Any, Arity] = {
    iter: _arity_between(1, 2),
    next: _arity_between(1, 2),
    getattr: _arity_between(2, 3),
    enumerate: _arity_between(1, 2, "iterable start"),
    vars: _arity_between(0, 1),
    dir: _arity_between(0, 1),
    range: _arity_between(1, 3),
    slice: _arity_between(1, 3),
    bool: _arity_between(0, 1),
    list: _arity_between(0, 1),
    tuple: _arity_between(0, 1),
    set: _arity_between(0, 1),
    frozenset: _arity_between(0, 1),
    int: Arity(0, 2, 2, frozenset(("base",))),
    float: _arity_between(0, 1),
    complex: _arity_between(0, 2, "real imag"),
    str: _arity_between(0, 3, "object encoding errors"),
    dict: Arity(0, _UNBOUNDED, 1, None),
    map: _arity_between(2, _UNBOUNDED),
    filter: _arity_between(2, 2),
    zip: Arity(0, _UNBOUNDED, _UNBOUNDED, frozenset(("strict",))),
    reversed: _arity_between(1, 1),
    super: _arity_between(0, 2),
    min: Arity(1, _UNBOUNDED, _UNBOUNDED, frozenset(("key", "default"))),
    max: Arity(1, _UNBOUNDED, _UNBOUNDED, frozenset(("key", "default"))),
    collections.deque: _arity_between(0, 2, "iterable maxlen"),
    collections.OrderedDict: Arity(0, _UNBOUNDED, 1, None),
    collections.defaultdict: Arity(0, _UNBOUNDED, 2, None),
    itertools.count: _arity_between(0, 2, "start step"),
    itertools.cycle: _arity_between(1, 1),
    itertools.repeat: _arity_between(1, 2, "object times"),
    itertools.islice: _arity_between(2, 4),
    itertools.takewhile: _arity_between(2, 2),
    itertools.dropwhile: _arity_between(2, 2),
    itertools.filterfalse: _arity_between(2, 2),
    itertools.starmap: _arity_between(2, 2),
    itertools.accumulate: Arity(1, 3, 2, frozenset(("iterable", "func", "initial"))),
    itertools.compress: _arity_between(2, 2, "data selectors"),
    itertools.pairwise: _arity_between(1, 1),
    itertools.zip_longest: Arity(0, _UNBOUNDED, _UNBOUNDED, frozenset(("fillvalue",))),
    itertools.tee: _arity_between(1, 2),
    itertools.groupby: _arity_between(1, 2, "iterable key"),
    itertools.permutations: _arity_between(1, 2, "iterable r"),
    itertools.combinations: _arity_between(2, 2, "iterable r"),
    itertools.combinations_with_replacement: _arity_between(2, 2, "iterable r"),
    itertools.product: Arity(0, _UNBOUNDED, _UNBOUNDED, frozenset(("repeat",))),
    functools.reduce: _arity_between(2, 3),
    dict.pop: _arity_between(2, 3),
    set.update: _arity_between(1, _UNBOUNDED),
    frozenset.union: _arity_between(1, _UNBOUNDED),
    set.union: _arity_between(1, _UNBOUNDED),
    set.intersection: _arity_between(1, _UNBOUNDED),
    frozenset.intersection: _arity_between(1, _UNBOUNDED),
    set.difference: _arity_between(1, _UNBOUNDED),
    frozenset.difference: _arity_between(1, _UNBOUNDED),
    collections.deque.rotate: _arity_between(1, 2),
    collections.deque.append: _arity_between(2, 2),
    collections.deque.appendleft: _arity_between(2, 2),
    collections.deque.extend: _arity_between(2, 2),
    collections.deque.extendleft: _arity_between(2, 2),
    collections.deque.pop: _arity_between(1, 1),
    collections.deque.popleft: _arity_between(1, 1),
    collections.deque.clear: _arity_between(1, 1),
    collections.deque.count: _arity_between(2, 2),
    collections.deque.index: _arity_between(2, 4),
    collections.deque.insert: _arity_between(3, 3),
    collections.deque.remove: _arity_between(2, 2),
    collections.deque.reverse: _arity_between(1, 1),
    dict.get: _arity_between(2, 3),
    **{getattr(dict, name): _arity_between(1, 1) for name in ("clear", "copy", "keys", "values", "items", "popitem")},
    **{getattr(set, name): _arity_between(1, 1) for name in ("clear", "copy", "pop")},
    frozenset.copy: _arity_between(1, 1),
    dict.update: Arity(1, _UNBOUNDED, 2, None),
    **{
        method: _arity_between(2, 2)
        for cls in (list, tuple, dict, set, frozenset, collections.deque)
        for name in ("__getitem__", "__contains__", "__delitem__", "__add__", "__mul__", "__rmul__", "__iadd__", "__imul__", "index", "count", "remove")
        if (method := getattr(cls, name, None)) is not None and name != "index"
    },
    list.index: _arity_between(2, 4),
    tuple.index: _arity_between(2, 4),
    dict.__setitem__: _arity_between(3, 3),
    list.__setitem__: _arity_between(3, 3),
} | {
    method: _arity_between(2, 2)
    for cls in (set, frozenset)
    for name in ("add", "discard", "remove", "issubset", "issuperset", "isdisjoint", "symmetric_difference", "symmetric_difference_update")
    if (method := getattr(cls, name, None)) is not None
}  # fmt: skip

_C_MODULES = frozenset(
    ("builtins", "itertools", "collections", "_collections", "_functools", "_heapq", "_operator", "math")
)


@functools.lru_cache(maxsize=2048)
def _arity_of(held: Any) -> Arity | None:
    """Return the arity of a C callable; None if it is unknown."""
    known = _KNOWN_ARITIES.get(held)
    if known is not None:
        return known
    if isinstance(held, type) or getattr(held, "__module__", None) not in (*_C_MODULES, None):
        return None
    owner = getattr(held, "__objclass__", None)
    if getattr(held, "__module__", None) is None and (owner is None or owner.__module__ not in _C_MODULES):
        return None
    try:
        parameters = inspect.signature(held).parameters.values()
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


def check_arity(tx: Tracer, held: Any, args: Args, kwargs: Kwargs) -> None:
    """Raise Python's TypeError if a C callable does not accept these arguments."""
    try:
        arity = _arity_of(held)
    except TypeError:
        return
    if arity is None or arity.accepts(len(args), kwargs):
        return
    with UserErrors(tx, TypeError):
        held(*[object()] * len(args), **dict.fromkeys(kwargs, object()))


_CONTAINER_FACTORIES: dict[type, Any] = {
    list: list,
    dict: dict,
    set: set,
    frozenset: frozenset,
    tuple: tuple,
    collections.deque: collections.deque,
    collections.OrderedDict: collections.OrderedDict,
    collections.defaultdict: collections.defaultdict,
}


def check_method_arity(tx: Tracer, cls: type, name: str, args: Args, kwargs: Kwargs) -> None:
    """Raise Python's TypeError if a builtin container method does not accept these arguments."""
    make = _CONTAINER_FACTORIES.get(cls)
    method = getattr(cls, name, None)
    if make is None or method is None:
        return
    try:
        arity = _arity_of(method)
    except TypeError:
        return
    if arity is None or arity.accepts(len(args) + 1, kwargs):
        return
    with UserErrors(tx, TypeError):
        method(make(), *[object()] * len(args), **dict.fromkeys(kwargs, object()))
