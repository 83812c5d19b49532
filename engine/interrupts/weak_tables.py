"""Tables of weakly held keys or values, which lose no Ctrl-C when one is freed.

Python ignores an exception in the callback of a weak reference. If the callback is Python code, as in
``weakref.WeakKeyDictionary``, a Ctrl-C can arrive in it and is lost. Here the callbacks are built-in functions.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator, MutableMapping
from functools import partial
from typing import TypeVar

__all__ = ["WeakMemo", "WeakTable", "WeakValueTable"]

K = TypeVar("K")
V = TypeVar("V")


class WeakTable(MutableMapping[K, V]):
    """Mapping by the identity of its keys; an entry lives as long as its key.

    Equal keys differ: code objects of different files can be equal.
    """

    __slots__ = ("_entries",)

    def __init__(self) -> None:
        self._entries: dict[int, tuple[weakref.ref[K], V]] = {}

    def __getitem__(self, key: K) -> V:
        entry = self._entries[id(key)]
        if entry[0]() is not key:
            raise KeyError(key)
        return entry[1]

    def __setitem__(self, key: K, value: V) -> None:
        # The callback passes the weak reference too: the default of ``dict.pop``.
        self._entries[id(key)] = weakref.ref(key, partial(self._entries.pop, id(key))), value

    def __delitem__(self, key: K) -> None:
        del self._entries[id(key)]

    def __iter__(self) -> Iterator[K]:
        objects = (reference() for reference, _ in tuple(self._entries.values()))
        return (key for key in objects if key is not None)

    def __len__(self) -> int:
        return len(self._entries)


class WeakMemo(WeakTable[K, V]):
    """Memo of ``make(key)``. The result of ``make`` must not reference the key."""

    __slots__ = ("_make",)

    def __init__(self, make: Callable[[K], V]) -> None:
        super().__init__()
        self._make = make

    def __call__(self, key: K) -> V:
        """Return the value of a key, computed on the first call."""
        entry = self._entries.get(id(key))
        if entry is not None and entry[0]() is key:
            return entry[1]
        value = self[key] = self._make(key)
        return value


class WeakValueTable(MutableMapping[K, V]):
    """Mapping whose entries live as long as their values."""

    __slots__ = ("_references",)

    def __init__(self) -> None:
        self._references: dict[K, weakref.ref[V]] = {}

    def __getitem__(self, key: K) -> V:
        value = self._references[key]()
        if value is None:
            raise KeyError(key)
        return value

    def __setitem__(self, key: K, value: V) -> None:
        self._references[key] = weakref.ref(value, partial(self._references.pop, key))

    def __delitem__(self, key: K) -> None:
        del self._references[key]

    def __iter__(self) -> Iterator[K]:
        return (key for key, reference in tuple(self._references.items()) if reference() is not None)

    def __len__(self) -> int:
        return len(self._references)
