"""Advance iterators that traced code consumed."""

from __future__ import annotations

import contextlib
import types
from collections.abc import Callable, Iterator
from itertools import islice, tee
from typing import Any


def end_unstarted_generator(generator: Any, mark: Any) -> None:
    """End a generator that waits where it started, its body unrun."""
    with contextlib.suppress(StopIteration):
        generator.send(mark)


def make_advanced_iterator(iterable: Any, position: int) -> Iterator[Any]:
    """An iterator over ``iterable`` that has given ``position`` items already."""
    iterator: Any = iter(iterable)
    if hasattr(iterator, "__setstate__"):
        iterator.__setstate__(position)
        return iter(iterator)
    return islice(iterator, position, None)


def advance_iterator(iterator: Iterator[Any], steps: int) -> None:
    """Take items from an iterator that code before the end of the graph has seen already."""
    for _ in range(steps):
        next(iterator, None)


def make_tee(iterator: Iterator[Any]) -> Iterator[Any]:
    """One of what ``itertools.tee`` makes of an iterator."""
    return tee(iterator, 1)[0]


def make_reversed(sequence: Any, index: int) -> Iterator[Any]:
    """A reversed iterator whose next item is number ``index``; -1 is its end."""
    iterator: Any = reversed(sequence)
    if index < 0:
        for _ in iterator:
            pass  # one that has ended stays so, whatever is added later
    else:
        iterator.__setstate__(index)
    return iter(iterator)


def skip_items(iterator: Iterator[Any], count: int) -> Iterator[Any]:
    """The iterator, ``count`` items on."""
    for _ in range(count):
        next(iterator)
    return iterator


def make_suspended_generator(
    code: types.CodeType, namespace: dict[str, Any], names: tuple[str, str], cells: tuple[Any, ...], *values: Any
) -> types.GeneratorType[Any, Any, Any]:
    """A generator that waits at the ``yield`` at which its code begins."""
    made: types.GeneratorType[Any, Any, Any] = types.FunctionType(code, namespace, code.co_name, None, cells)(*values)
    made.__name__, made.__qualname__ = names
    next(made)
    return made


def make_finished_generator(make: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """A generator that has come to its end."""
    made = make(*args, **kwargs)
    made.close()
    return made
