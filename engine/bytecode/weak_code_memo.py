"""What is worked out about a code object, kept for as long as the code object lives and never keeping it alive."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from types import CodeType
from typing import Generic, TypeVar

T = TypeVar("T")


class WeakCodeMemo(Generic[T]):
    """``make(code)``, remembered by identity: code objects compare equal across files. What ``make`` returns must not hold ``code``."""

    def __init__(self, make: Callable[[CodeType], T]) -> None:
        self._make = make
        self._table: dict[int, tuple[weakref.ref[CodeType], T]] = {}

    def __call__(self, code: CodeType) -> T:
        """The value for a code object, made when there is none yet."""
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
        """The value for a code object if it was made or set."""
        found = self._table.get(id(code))
        return found[1] if found is not None and found[0]() is code else None
