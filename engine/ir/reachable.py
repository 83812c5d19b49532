"""Walk over a graph of any kind."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

T = TypeVar("T")


def reachable(roots: Iterable[T], successors: Callable[[T], Iterable[T]]) -> Iterator[T]:
    """Yield the roots and all that can be reached from them, each once, nearest first."""
    queue = deque(dict.fromkeys(roots))
    visited = set(queue)
    while queue:
        item = queue.popleft()
        yield item
        new = dict.fromkeys(s for s in successors(item) if s not in visited)
        visited.update(new)
        queue.extend(new)
