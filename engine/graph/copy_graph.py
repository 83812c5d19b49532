"""Copies of graphs with fewer nodes."""

from __future__ import annotations

from collections.abc import Collection

import torch.fx


def without_nodes(graph: torch.fx.GraphModule, unused: Collection[torch.fx.Node]) -> torch.fx.GraphModule:
    """Return a copy of a graph without nodes that no other node reads."""
    copied = torch.fx.Graph()
    copies: dict[torch.fx.Node, torch.fx.Node] = {}
    for node in graph.graph.nodes:
        if node not in unused:
            copies[node] = copied.node_copy(node, copies.__getitem__)
    return torch.fx.GraphModule(graph, copied)
