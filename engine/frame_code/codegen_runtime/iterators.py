"""Advance iterators that traced code consumed."""

from __future__ import annotations

import contextlib
import types
from collections.abc import Callable, Iterator
from itertools import islice, tee
from typing import Any


def end_unstarted_generator(generator: Any, mark: Any) -> None:
    """End a generator that has not run any of its body."""
    with contextlib.suppress(StopIteration):
        generator.send(mark)


def make_advanced_iterator(iterable: Any, position: int) -> Iterator[Any]:
    """Return an iterator over ``iterable`` that is advanced by ``position`` items."""
    iterator: Any = list.__iter__(iterable) if isinstance(iterable, list) else iter(iterable)
    if hasattr(iterator, "__setstate__"):
        iterator.__setstate__(position)
        return iter(iterator)
    return islice(iterator, position, None)


def advance_iterator(iterator: Iterator[Any], steps: int) -> None:
    """Advance an iterator past the items that code before the end of the graph has consumed."""
    for _ in range(steps):
        next(iterator, None)


def make_tee(iterator: Iterator[Any]) -> Iterator[Any]:
    """Return an iterator that ``itertools.tee`` makes of ``iterator``."""
    return tee(iterator, 1)[0]


def make_reversed(sequence: Any, index: int) -> Iterator[Any]:
    """Return a reversed iterator whose next item has this index; -1 means exhausted."""
    iterator: Any = reversed(sequence)
    if index < 0:
        for _ in iterator:
            pass  # an exhausted iterator stays exhausted even if the sequence grows
    else:
        iterator.__setstate__(index)
    return iter(iterator)


def skip_items(iterator: Iterator[Any], count: int) -> Iterator[Any]:
    """Advance the iterator by ``count`` items and return it."""
    for _ in range(count):
        next(iterator)
    return iterator


def make_suspended_generator(
    code: types.CodeType, namespace: dict[str, Any], names: tuple[str, str], cells: tuple[Any, ...], *values: Any
) -> types.GeneratorType[Any, Any, Any]:
    """Return a generator suspended at the ``yield`` with which its code begins."""
    generator: types.GeneratorType[Any, Any, Any] = types.FunctionType(code, namespace, code.co_name, None, cells)(
        *values
    )
    generator.__name__, generator.__qualname__ = names
    next(generator)
    return generator


def make_finished_generator(make: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Return a closed generator: traced code has consumed its items."""
    generator = make(*args, **kwargs)
    generator.close()
    return generator
