"""Copy a traced graph with other placeholders and outputs; shared by the outer wrappers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch.fx

from engine.aot.node_properties import output_args


def replace_placeholders(
    graph: torch.fx.GraphModule,
    add_input: Callable[[torch.fx.Graph, int, torch.fx.Node, dict[torch.fx.Node, Any]], Any],
    outputs: Sequence[int] | None = None,
    before: Callable[[torch.fx.Graph], None] | None = None,
    returned: Callable[[torch.fx.Graph, list[Any]], list[Any]] | None = None,
) -> torch.fx.GraphModule:
    """Copy ``graph``; ``add_input(copy, position, placeholder, copies)`` replaces each input.

    ``outputs`` are the positions of the outputs to return (None: all). ``before`` may first add placeholders to the
    copy; ``returned`` changes the returned values.
    """
    copied = torch.fx.Graph()
    if before is not None:
        before(copied)
    copies: dict[torch.fx.Node, Any] = {}
    position = 0
    for node in graph.graph.nodes:
        if node.op == "placeholder":
            copies[node] = add_input(copied, position, node, copies)
            position += 1
        elif node.op != "output":
            copies[node] = copied.node_copy(node, copies.__getitem__)
    last = output_args(graph.graph)
    outputs_kept = last if outputs is None else [last[n] for n in outputs]
    values = [torch.fx.node.map_arg(v, copies.__getitem__) for v in outputs_kept]
    copied.output(tuple(values if returned is None else returned(copied, values)))
    return torch.fx.GraphModule(graph, copied)
