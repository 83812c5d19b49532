"""Saves size symbols for the backward that its other inputs give only inside expressions.

A backward that reads ``cat([x[mask], y])``, of size ``u0 + 8``, may need ``u0`` itself.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

import sympy
import torch
import torch.fx

from engine.ir.introspection.symbols import symbol_of, symbols_in
from engine.ir.node_metadata import NodeProvenance, set_provenance
from engine.ir.node_values import ancestors_of, is_scalar, tensor_meta

Node = torch.fx.Node


def save_symbols(
    graph: torch.fx.Graph, forward: Sequence[Node], inputs: Collection[Node], computed: Sequence[Node]
) -> list[Node]:
    """Return forward numbers to save, so that the backward has the symbols of its sizes.

    ``inputs`` are the backward's, and ``computed`` are its results. A symbol that no forward value has as a size of
    its own remains undefined.
    """
    needed = {s for n in (*inputs, *ancestors_of(computed, inputs)) for s in symbols_in(n.meta.get("val"))}
    undefined = needed - {symbol for n in inputs for symbol in _sizes_by_symbol(n)}
    sizes: list[Node] = []
    for node in forward:
        for symbol, dim in _sizes_by_symbol(node).items():
            if symbol in undefined:
                undefined.remove(symbol)
                sizes.append(node if is_scalar(node) else _read_size(graph, node, dim))
    return sizes


def _sizes_by_symbol(node: Node) -> dict[sympy.Symbol, int]:
    """Return the dimensions whose sizes are symbols; -1 for the value of a number."""
    if is_scalar(node):
        symbol = symbol_of(node.meta["val"])
        return {} if symbol is None else {symbol: -1}
    value = tensor_meta(node)
    sizes = () if value is None else value.shape
    return {symbol: dim for dim, size in enumerate(sizes) if (symbol := symbol_of(size)) is not None}


def _read_size(graph: torch.fx.Graph, node: Node, dim: int) -> Node:
    with graph.inserting_after(node):
        size = graph.call_function(torch.ops.aten.sym_size.int, (node, dim))
    size.meta = {"val": node.meta["val"].shape[dim]}
    set_provenance(size, NodeProvenance(note="a size that the backward needs"))
    return size
