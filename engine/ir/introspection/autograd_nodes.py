"""Walk over the nodes of an autograd graph."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from engine.ir.reachable import reachable


def autograd_nodes(roots: Iterable[Any]) -> Iterator[Any]:
    """Yield each node behind ``grad_fn`` values once, nearest first.

    Roots that are None, as those of leaves, are left out.
    """

    def following(node: Any) -> list[Any]:
        return [n for n, _ in node.next_functions if n is not None]

    return reachable((root for root in roots if root is not None), following)
