"""Serializes values and functional graphs to JSON and back; supports only listed types."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.fx

from engine.cache.fallback_kinds import CacheFallback, NotCached
from engine.cache.serialize_symbols import SymbolTable
from engine.cache.serialize_values import (
    Data,
    deserialize_fake,
    deserialize_target,
    deserialize_value,
    serialize_fake,
    serialize_target,
    serialize_value,
)
from engine.ir.node_metadata import (
    BACKWARD_KEY,
    CHECKPOINT_KEY,
    NodeProvenance,
    checkpoint_of,
    is_backward_node,
    provenance_of,
)
from engine.torch_private.fake_tensors import FakeTensorMode


def serialize_graph(module: torch.fx.GraphModule) -> Data:
    """Return a functional graph as JSON.

    Of a node's provenance, only the names of traced nodes and the note are stored: source positions may change.

    Raises:
        NotCached: Something in the graph cannot be serialized.
    """
    return [_serialize_node(n, module) for n in module.graph.nodes]


def _serialize_node(node: torch.fx.Node, module: torch.fx.GraphModule) -> Data:
    if node.op not in ("placeholder", "call_function", "output", "get_attr"):
        raise NotCached(CacheFallback.UNSERIALIZABLE_VALUE, f"{node.name} is an attribute of the graph")
    origin = provenance_of(node)
    sources = [n.rpartition(":")[2] for n in origin.nodes]
    target: Data = serialize_target(node.target) if node.op == "call_function" else ""
    if node.op == "get_attr":
        target = serialize_value(getattr(module, str(node.target), None))
    args = serialize_value((node.args, dict(node.kwargs)), lambda n: n.name) if node.op != "placeholder" else None
    shape = serialize_fake(node.meta["val"]) if "val" in node.meta else None
    marks = [is_backward_node(node), checkpoint_of(node)]
    return [node.op, node.name, target, args, shape, sources, origin.note, marks]


def deserialize_graph(
    data: Data, mode: FakeTensorMode, symbols: SymbolTable, origin: Callable[[list[str], str], NodeProvenance]
) -> torch.fx.GraphModule:
    """Return the graph that ``serialize_graph`` serialized, with new fake values.

    ``origin`` creates a node's provenance from names and a note.
    """
    graph = torch.fx.Graph()
    nodes: dict[str, torch.fx.Node] = {}
    constants: dict[str, Any] = {}
    for op, name, target, args, shape, sources, note, (late, checkpoint) in data:
        arguments = ((), {}) if args is None else deserialize_value(args, nodes.__getitem__, symbols)
        if op == "output":
            new_node = graph.output(arguments[0][0])
        elif op == "placeholder":
            new_node = graph.create_node(op, name, name=name)
        elif op == "get_attr":
            constants[name] = deserialize_value(target)
            new_node = graph.create_node(op, name, name=name)
        else:
            new_node = graph.create_node(op, deserialize_target(target), arguments[0], arguments[1], name=name)
        nodes[name] = new_node
        if shape is not None:
            new_node.meta["val"] = deserialize_fake(shape, mode, symbols)
        custom: dict[str, Any] = {"engine_origin": origin(sources, note)}
        if late:
            custom[BACKWARD_KEY] = True
        if checkpoint is not None:
            custom[CHECKPOINT_KEY] = checkpoint
        new_node.meta["custom"] = custom
    return torch.fx.GraphModule(constants, graph)
