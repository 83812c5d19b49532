"""Weak memo table keyed by code object.

An entry lives as long as its code object and holds no strong reference to it.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from types import CodeType
from typing import Generic, TypeVar

T = TypeVar("T")


class WeakCodeMemo(Generic[T]):
    """Memo of ``make(code)`` by identity: code objects of different files can be equal.

    The result of ``make`` must not reference ``code``.
    """

    def __init__(self, make: Callable[[CodeType], T]) -> None:
        self._make = make
        self._table: dict[int, tuple[weakref.ref[CodeType], T]] = {}

    def __call__(self, code: CodeType) -> T:
        """Return the value of a code object, computed on the first call."""
        found = self._table.get(id(code))
        if found is not None and found[0]() is code:
            return found[1]
        value = self._make(code)
        self[code] = value
        return value

    def __setitem__(self, code: CodeType, value: T) -> None:
        key, table = id(code), self._table
        table[key] = (weakref.ref(code, lambda _: table.pop(key, None)), value)

    def get(self, code: CodeType) -> T | None:
        """Return the value of a code object if it was computed or set."""
        found = self._table.get(id(code))
        return found[1] if found is not None and found[0]() is code else None
