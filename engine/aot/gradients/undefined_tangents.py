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

from engine.aot.storage_geometry import size_hint
from engine.graph.passes.eliminate_dead_code import eliminate_dead_code
from engine.ir.aot.aot_metadata import IntOrSymInt, is_same_layout, is_same_size
from engine.ir.introspection.symbols import symbolic_numbers_in
from engine.ir.node_values import tensor_meta
from engine.ir.static_sizes import static_size


def specialize_to_defined_tangents(
    module: torch.fx.GraphModule, absent: Collection[str], tangents: Collection[str]
) -> torch.fx.GraphModule | None:
    """Return ``module`` without undefined tangents; gradients that need only those are None.

    None if zeros must be filled in instead, because a size or the layout of them is not known.
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
            if not _copy_with_zeros(graph, node, copies, late, gone):
                return None
        else:
            copies[node] = graph.node_copy(node, copies.__getitem__)
        if node.name in tangents or any(n in late for n in node.all_input_nodes):
            late.add(node)
    thinned = torch.fx.GraphModule(module, graph)
    if eliminate_dead_code(thinned, is_backward=True):
        thinned.recompile()
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
) -> bool:
    """Copy a node that reads undefined values, with zeros for them, unless it is undefined.

    Return False if a size or the layout of the zeros is not known.
    This holds for operators that are not linear too, since autograd runs none of them.
    """
    if all(n in gone or n not in late for n in node.all_input_nodes):
        gone.add(node)
        return True
    if node.target is torch.ops.aten.add.Tensor and not node.kwargs:
        left, right = node.args[:2]
        defined = right if left in gone else left
        value = tensor_meta(defined)
        if value is not None and is_same_layout(value, node.meta["val"]):
            copies[node] = copies[defined]
            return True
    filled = {n: copies[n] if n not in gone else _zeros(graph, n, copies) for n in node.all_input_nodes}
    if None in filled.values():
        return False
    copies[node] = graph.node_copy(node, filled.__getitem__)
    copies[node].meta = dict(node.meta)
    return True


def _zeros(graph: torch.fx.Graph, node: torch.fx.Node, copies: dict[torch.fx.Node, Any]) -> torch.fx.Node | None:
    """Return zeros in the traced layout of an undefined value, or None if it has none."""
    value = tensor_meta(node)
    if value is None:
        return None
    by_stride = sorted(range(value.dim()), key=lambda d: -(size_hint(value.stride(d)) or 0))
    dense = [value.shape[d] for d in by_stride]
    order = [by_stride.index(d) for d in range(value.dim())]
    with value.fake_mode:  # type: ignore[attr-defined]
        zeros = torch.zeros(dense, dtype=value.dtype, device=value.device)
        permuted = zeros.permute(order)
    sizes = [_size(graph, size, copies) if static_size(size) is None else size for size in dense]
    if None in sizes or not is_same_layout(permuted, value):
        return None
    full = graph.call_function(torch.ops.aten.full.default, (sizes, 0), {"dtype": value.dtype, "device": value.device})
    full.meta = {"val": zeros}
    if order == sorted(order):
        return full
    result = graph.call_function(torch.ops.aten.permute.default, (full, order))
    result.meta = {"val": permuted}
    return result


def _size(graph: torch.fx.Graph, size: IntOrSymInt, copies: dict[torch.fx.Node, Any]) -> torch.fx.Node | None:
    """Return a node for a symbolic size, or None if no scalar or tensor has it."""
    for copy in copies.values():
        if any(is_same_size(n, size) for n in symbolic_numbers_in([copy.meta.get("val")]) if tensor_meta(copy) is None):
            return copy  # type: ignore[no-any-return]
    for copy in reversed(list(copies.values())):  # later nodes first: a saved tensor may have been mutated since
        value = tensor_meta(copy)
        for dim, other_size in enumerate(() if value is None else value.shape):
            if is_same_size(other_size, size):
                size_node = graph.call_function(torch.ops.aten.sym_size.int, (copy, dim))
                size_node.meta = {"val": size}
                return size_node
    return None
