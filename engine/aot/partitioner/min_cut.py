"""Minimum cut between two nodes of a weighted directed graph, by Dinic's algorithm (1970)."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from engine.ir.reachable import reachable

INFINITE = 1 << 62


@dataclass
class FlowNetwork:
    """Directed graph whose edges have integer capacities; nodes are numbers from ``node()``."""

    _edges: list[list[int]] = field(default_factory=list)
    """Per node, indices of the edges that leave it; edge ``e ^ 1`` is the reverse of ``e``."""
    _heads: list[int] = field(default_factory=list)
    _residual: list[int] = field(default_factory=list)

    def node(self) -> int:
        """Add a node and return its number."""
        self._edges.append([])
        return len(self._edges) - 1

    def edge(self, tail: int, head: int, capacity: int) -> None:
        """Add an edge, and its reverse of capacity 0 for undoing flow."""
        for a, b, c in ((tail, head, capacity), (head, tail, 0)):
            self._edges[a].append(len(self._heads))
            self._heads.append(b)
            self._residual.append(c)

    def min_cut(self, source: int, sink: int) -> tuple[int, set[int]]:
        """Return the capacity of the minimum cut, and the nodes on its sink side.

        Of several minimum cuts, the one closest to the sink is returned. The network is consumed. A capacity of at
        least INFINITE means that there is no cut.
        """
        flow = 0
        while flow < INFINITE and (levels := self._levels(source, sink)) is not None:
            flow += self._blocking(source, sink, levels)
        return flow, self._sink_side(sink)

    def _levels(self, source: int, sink: int) -> list[int] | None:
        """Return distances from the source in the residual graph; None if the sink is unreachable."""
        levels = [-1] * len(self._edges)
        levels[source] = 0
        queue = deque((source,))
        while queue:
            node = queue.popleft()
            for edge in self._edges[node]:
                head = self._heads[edge]
                if self._residual[edge] > 0 and levels[head] < 0:
                    levels[head] = levels[node] + 1
                    queue.append(head)
        return None if levels[sink] < 0 else levels

    def _blocking(self, source: int, sink: int, levels: list[int]) -> int:
        """Push a blocking flow along shortest paths; return its amount."""
        heads, left = self._heads, self._residual
        following = [0] * len(self._edges)
        total = 0
        path: list[int] = []
        node = source
        while True:
            if node == sink:
                pushed = min(left[e] for e in path)
                total += pushed
                for e in path:
                    left[e] -= pushed
                    left[e ^ 1] += pushed
                first = next(k for k, e in enumerate(path) if left[e] == 0)
                node = heads[path[first] ^ 1]
                del path[first:]
                continue
            edges = self._edges[node]
            while following[node] < len(edges) and not (
                left[edges[following[node]]] > 0 and levels[heads[edges[following[node]]]] == levels[node] + 1
            ):
                following[node] += 1
            if following[node] < len(edges):
                path.append(edges[following[node]])
                node = heads[path[-1]]
            elif path:
                node = heads[path.pop() ^ 1]
                following[node] += 1
            else:
                return total

    def _sink_side(self, sink: int) -> set[int]:
        """Return the nodes from which the sink is reachable in the residual graph."""
        heads, left = self._heads, self._residual
        return set(reachable([sink], lambda node: [heads[e] for e in self._edges[node] if left[e ^ 1] > 0]))
