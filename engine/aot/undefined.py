"""Makes the backward graph for a call in which gradients flow back from some results only: the rest is absent, as it is in eager.

A backward is linear in its tangents, so what needs absent tangents alone is absent, and a sum with something absent is the other
summand. Filling in zeros instead would give zeros where eager gives no gradient, and NaN where zero meets an infinite derivative.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import torch
import torch.fx

from engine.graph.passes.drop_dead import drop_dead


class NotSeparable(Exception):
    """The size of an absent value, for which zeros must stand, is not known."""


def without_tangents(module: torch.fx.GraphModule, absent: Collection[str], tangents: Collection[str]) -> Any:
    """``module`` without the placeholders in ``absent``; gradients that nothing flows to are None.

    Raises:
        NotSeparable: zeros must be filled in instead.
    """
    graph = torch.fx.Graph()
    copies: dict[torch.fx.Node, Any] = {}
    late: set[torch.fx.Node] = set()
    gone: set[torch.fx.Node] = set()
    for node in module.graph.nodes:
        if node.op == "placeholder" and node.name in absent:
            gone.add(node)
        elif node.op == "output":
            graph.output(tuple(None if o in gone or o is None else copies[o] for o in node.args[0]))
            break
        elif any(n in gone for n in node.all_input_nodes):
            _thin(graph, node, copies, late, gone)
        else:
            copies[node] = graph.node_copy(node, copies.__getitem__)
            copies[node].meta = dict(node.meta)
        if node.name in tangents or any(n in late for n in node.all_input_nodes):
            late.add(node)
    thinned = torch.fx.GraphModule(module, graph)
    drop_dead(thinned)
    return thinned


def absent_gradients(module: torch.fx.GraphModule, defined: Collection[str]) -> tuple[bool, ...]:
    """For each gradient whether none of the ``defined`` tangents flows to it."""
    reached: set[torch.fx.Node] = set()
    for node in module.graph.nodes:
        if node.name in defined or any(n in reached for n in node.all_input_nodes):
            reached.add(node)
    output = next(n for n in reversed(module.graph.nodes) if n.op == "output")
    return tuple(o not in reached for o in output.args[0])


def _thin(graph: torch.fx.Graph, node: torch.fx.Node, copies: dict[Any, Any], late: set[Any], gone: set[Any]) -> None:
    """Copy a node that reads something absent, unless it is absent itself: of operators that are not linear too, since autograd runs none of them."""
    if all(n in gone or n not in late for n in node.all_input_nodes):
        gone.add(node)
        return
    if node.target is torch.ops.aten.add.Tensor and not node.kwargs:
        left, right = node.args[:2]
        other = right if left in gone else left
        if isinstance(other, torch.fx.Node) and _is_same(other.meta["val"], node.meta["val"]):
            copies[node] = copies[other]
            return
    filled = {n: copies[n] if n not in gone else _zeros(graph, n) for n in node.all_input_nodes}
    copies[node] = graph.node_copy(node, filled.__getitem__)
    copies[node].meta = dict(node.meta)


def _is_same(a: torch.Tensor, b: torch.Tensor) -> bool:
    return a.dtype == b.dtype and tuple(a.shape) == tuple(b.shape) and a.stride() == b.stride()


def _zeros(graph: torch.fx.Graph, node: torch.fx.Node) -> torch.fx.Node:
    value = node.meta["val"]
    if not isinstance(value, torch.Tensor) or not all(isinstance(s, int) for s in value.shape):
        raise NotSeparable(node.name)
    made = graph.call_function(
        torch.ops.aten.full.default, (list(value.shape), 0), {"dtype": value.dtype, "device": value.device}
    )
    with value.fake_mode:  # type: ignore[attr-defined]
        made.meta = {"val": torch.zeros(value.shape, dtype=value.dtype, device=value.device)}
    return made
