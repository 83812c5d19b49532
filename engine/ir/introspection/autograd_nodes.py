"""Walk over the nodes of an autograd graph."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from typing import Any


def autograd_nodes(roots: Iterable[Any]) -> Iterator[Any]:
    """Yield each node behind ``grad_fn`` values once, nearest first.

    Roots that are None, as those of leaves, are left out.
    """
    work = deque(root for root in roots if root is not None)
    visited = set(work)
    while work:
        node = work.popleft()
        yield node
        for following, _ in node.next_functions:
            if following is not None and following not in visited:
                visited.add(following)
                work.append(following)
