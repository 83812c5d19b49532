"""Decorators that put a function into a table, once per key."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TypeVar

_Key = TypeVar("_Key")
_Entry = TypeVar("_Entry")


def register_once(table: dict[_Key, _Entry], keys: Iterable[_Key], what: str) -> Callable[[_Entry], _Entry]:
    """Return a decorator that stores a function in ``table`` under each of these keys.

    ``what`` names the function in the error, for instance ``"a lowering"``.

    Raises:
        ValueError: by the decorator, if a key has a function already; the table is then unchanged.
    """
    wanted = tuple(keys)

    def register(entry: _Entry) -> _Entry:
        for key in wanted:
            if key in table:
                raise ValueError(f"{key.__qualname__ if isinstance(key, type) else key} has {what} already")
        table.update(dict.fromkeys(wanted, entry))
        return entry

    return register
