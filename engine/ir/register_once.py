"""Decorators that put a function into a table, once per key."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeVar, cast

_Key = TypeVar("_Key")
_Entry = TypeVar("_Entry")


def register_once(table: dict[_Key, _Entry], keys: Iterable[_Key], noun: str) -> Callable[[_Entry], _Entry]:
    """Return a decorator that stores a function in ``table`` under each of these keys.

    ``noun`` names the function in the error, for instance ``"a lowering"``.

    Raises:
        ValueError: by the decorator, if a key has a function already; the table is then unchanged.
    """
    new_keys = tuple(keys)

    def register(entry: _Entry) -> _Entry:
        for key in new_keys:
            if key in table:
                raise ValueError(f"{key.__qualname__ if isinstance(key, type) else key} has {noun} already")
        table.update(dict.fromkeys(new_keys, entry))
        return entry

    return register


def register_each(register: Callable[..., Callable[..., object]], *keys: object) -> Callable[[_Entry], _Entry]:
    """Return a decorator that registers a function for each key, which it takes first.

    ``register(key)`` is the decorator that registers it for one key.
    """

    def register_all(function: _Entry) -> _Entry:
        for key in keys:
            register(key)(functools.partial(cast("Callable[..., object]", function), key))
        return function

    return register_all


def register_table(
    register: Callable[..., Callable[..., object]], table: Mapping[Any, object]
) -> Callable[[_Entry], _Entry]:
    """Return a decorator like ``register_each`` that also passes the entry of the key."""

    def register_all(function: _Entry) -> _Entry:
        for key, entry in table.items():
            register(key)(functools.partial(cast("Callable[..., object]", function), key, entry))
        return function

    return register_all
