"""Specialize a backward graph to the defined tangents; other gradients are undefined.

A backward is linear in its tangents. A value that needs only undefined tangents is undefined, and a sum with an
undefined summand is the other summand. Zeros instead would yield zero gradients where eager yields none, and NaN
where zero is multiplied by an infinite derivative.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import torch
import torch.fx

from engine.aot.fallback_kinds import AotFallback
from engine.graph.passes.eliminate_dead_code import eliminate_dead_code
from engine.ir.aot.aot_metadata import IntOrSymInt, is_same_layout, is_same_size
from engine.ir.fallback import FallbackRequired
from engine.ir.introspection.symbols import symbolic_numbers_in
from engine.ir.node_values import tensor_meta
from engine.ir.static_sizes import static_size


def specialize_to_defined_tangents(
    module: torch.fx.GraphModule, absent: Collection[str], tangents: Collection[str]
) -> Any:
    """Return ``module`` without undefined tangents; gradients that need only those are None.

    Raises:
        FallbackRequired: zeros must be filled in instead.
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
            _copy_with_zeros(graph, node, copies, late, gone)
        else:
            copies[node] = graph.node_copy(node, copies.__getitem__)
            copies[node].meta = dict(node.meta)
        if node.name in tangents or any(n in late for n in node.all_input_nodes):
            late.add(node)
    thinned = torch.fx.GraphModule(module, graph)
    eliminate_dead_code(thinned)
    return thinned


def undefined_gradients(module: torch.fx.GraphModule, defined: Collection[str]) -> tuple[bool, ...]:
    """Return for each gradient True if it depends on none of the ``defined`` tangents."""
    reached: set[torch.fx.Node] = set()
    for node in module.graph.nodes:
        if node.name in defined or any(n in reached for n in node.all_input_nodes):
            reached.add(node)
    output = next(n for n in reversed(module.graph.nodes) if n.op == "output")
    return tuple(o not in reached for o in output.args[0])


def _copy_with_zeros(
    graph: torch.fx.Graph, node: torch.fx.Node, copies: dict[Any, Any], late: set[Any], gone: set[Any]
) -> None:
    """Copy a node that reads undefined values, with zeros for them, unless it is undefined.

    This holds for operators that are not linear too, since autograd runs none of them.
    """
    if all(n in gone or n not in late for n in node.all_input_nodes):
        gone.add(node)
        return
    if node.target is torch.ops.aten.add.Tensor and not node.kwargs:
        left, right = node.args[:2]
        other = right if left in gone else left
        seen = tensor_meta(other)
        if seen is not None and is_same_layout(seen, node.meta["val"]):
            copies[node] = copies[other]
            return
    filled = {n: copies[n] if n not in gone else _zeros(graph, n, copies) for n in node.all_input_nodes}
    copies[node] = graph.node_copy(node, filled.__getitem__)
    copies[node].meta = dict(node.meta)


def _zeros(graph: torch.fx.Graph, node: torch.fx.Node, copies: dict[torch.fx.Node, Any]) -> torch.fx.Node:
    value = tensor_meta(node)
    if value is None:
        raise FallbackRequired(AotFallback.UNDEFINED_TANGENT_SIZE_UNKNOWN, f"{node.name} is no tensor", node.name)
    sizes = [_size(graph, size, copies) if static_size(size) is None else size for size in value.shape]
    made = graph.call_function(torch.ops.aten.full.default, (sizes, 0), {"dtype": value.dtype, "device": value.device})
    with value.fake_mode:  # type: ignore[attr-defined]
        made.meta = {"val": torch.zeros(value.shape, dtype=value.dtype, device=value.device)}
    return made


def _size(graph: torch.fx.Graph, size: IntOrSymInt, copies: dict[torch.fx.Node, Any]) -> torch.fx.Node:
    """Return a node for a symbolic size: an existing scalar or a size of an existing tensor.

    Raises:
        FallbackRequired: no node has this size.
    """
    for copy in copies.values():
        if any(is_same_size(n, size) for n in symbolic_numbers_in([copy.meta.get("val")]) if tensor_meta(copy) is None):
            return copy  # type: ignore[no-any-return]
    for copy in reversed(list(copies.values())):  # later nodes first: a saved tensor may have been mutated since
        value = tensor_meta(copy)
        for dim, other in enumerate(() if value is None else value.shape):
            if is_same_size(other, size):
                made = graph.call_function(torch.ops.aten.sym_size.int, (copy, dim))
                made.meta = {"val": size}
                return made
    raise FallbackRequired(AotFallback.UNDEFINED_TANGENT_SIZE_UNKNOWN, f"no value of the backward has the size {size}")
