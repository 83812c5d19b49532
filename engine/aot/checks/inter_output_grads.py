"""Where code that follows a graph asks autograd about single results: those of one compiled graph do not depend on each other to it."""

from __future__ import annotations

from typing import Any

import torch
import torch.fx

from engine.aot.node_properties import output_args


def check_inter_output_grads(graph: torch.fx.GraphModule, asking: str) -> str:
    """Why the graph is left to eager, where ``asking`` names what asks (``GraphSlot.autograd_uses_after_break``); empty when no result depends on another."""
    results = [n for n in output_args(graph.graph) if _requires_grad(n)] if asking else []
    for asked in results:
        if asked.op == "placeholder":
            continue
        for other in _autograd_dependents(asked):
            if other in results and other.meta["example_value"] is not asked.meta["example_value"]:
                return (
                    f"the code that follows calls {asking}, and may ask for the gradient of {asked.name}, "
                    f"which {other.name} depends on"
                )
    return ""


def _autograd_dependents(node: torch.fx.Node) -> list[torch.fx.Node]:
    """All that autograd reaches the node from."""
    found: dict[torch.fx.Node, None] = {}
    todo = [node]
    while todo:
        for user in todo.pop().users:
            if user not in found and _requires_grad(user):
                found[user] = None
                todo.append(user)
    return list(found)


def _requires_grad(node: Any) -> bool:
    """Whether autograd knows where a node's value comes from; of several values, one's."""
    if not isinstance(node, torch.fx.Node) or node.op == "output":
        return False
    value = node.meta.get("example_value")
    values = value if isinstance(value, (tuple, list)) else (value,)
    return any(isinstance(v, torch.Tensor) and v.requires_grad for v in values)
