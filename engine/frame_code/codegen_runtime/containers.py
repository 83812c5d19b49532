"""Refill containers that traced code mutated."""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Sequence
from typing import Any


def refill_deque(target: deque[Any], items: tuple[Any, ...]) -> None:
    """Replace the contents of a deque, with the methods of ``deque`` itself."""
    deque.clear(target)
    deque.extend(target, items)


def extend_deque(target: deque[Any], items: tuple[Any, ...]) -> None:
    """Append items to a deque by its own method; a full one drops its first items."""
    deque.extend(target, items)


def list_with_appended(of: Sequence[Any], items: tuple[Any, ...]) -> list[Any]:
    """Return the items of a list, tuple or deque as they will be when ``items`` are appended."""
    maxlen = getattr(of, "maxlen", None)
    return list(of) if not items else list(deque((*of, *items), maxlen))


def refill_dict(target: dict[Any, Any], keys: tuple[Any, ...], values: tuple[Any, ...]) -> None:
    """Replace the contents of a dict in order, with the methods of ``dict`` itself."""
    dict.clear(target)
    add_entries(target, keys, values)


def add_entries(target: dict[Any, Any], keys: tuple[Any, ...], values: tuple[Any, ...]) -> None:
    """Set items of a dict in order, with the methods of ``dict`` itself."""
    for key, value in zip(keys, values, strict=True):
        dict.__setitem__(target, key, value)


def refill_ordered(target: OrderedDict[Any, Any], keys: tuple[Any, ...], values: tuple[Any, ...]) -> None:
    """Replace the contents of an OrderedDict, with its own methods."""
    OrderedDict.clear(target)
    for key, value in zip(keys, values, strict=True):
        OrderedDict.__setitem__(target, key, value)


def refill_set(target: set[Any], items: tuple[Any, ...]) -> None:
    """Replace the contents of a set, with the methods of ``set`` itself."""
    set.clear(target)
    set.update(target, items)


def refill_list(target: list[Any], items: tuple[Any, ...]) -> None:
    """Replace the contents of a list, with the methods of ``list`` itself."""
    list.__setitem__(target, slice(None), items)


def new_container(cls: Any, *items: Any) -> Any:
    """Return an instance of a builtin container subclass without ``__init__``: it was traced."""
    for base in cls.__mro__:
        if base in (OrderedDict, dict, list, set, frozenset, tuple, int, float, complex, str, bytes):
            return base.__new__(cls, *items)
    raise TypeError(cls)
