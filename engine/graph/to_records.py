"""Records of FX graphs: a line of text, tensor metadata and provenance per node."""

from __future__ import annotations

from typing import Any

import torch
import torch.fx

from engine.graph.format_node import format_node, format_target
from engine.graph.mesh import mesh_of, placements_of
from engine.graph.passes.recorder import PASS_RECORDS_KEY
from engine.ir.aot.aot_graph import node_id_prefix
from engine.ir.introspection.symbols import SYMBOLIC_TYPES
from engine.ir.node_metadata import node_id, provenance_of
from engine.ir.static_sizes import static_sizes
from engine.records.graph import GraphRecord, NodeRecord


def graph_record(module: torch.fx.GraphModule, stage: str, compilation: str, title: str) -> GraphRecord:
    """Return the record of a traced graph ("fx") or an ATen graph ("aten", "decomposed", ...).

    Nothing is computed.
    """
    nodes = tuple(_node_record(node, node_id_prefix(stage), compilation) for node in module.graph.nodes)
    passes = module.meta.get(PASS_RECORDS_KEY, ())
    mesh = mesh_of([(n, fake_value_of(n)) for n in module.graph.nodes])
    return GraphRecord(f"{stage}:{compilation}", stage, title, nodes, passes=passes, mesh=mesh)


def fake_value_of(node: torch.fx.Node) -> Any:
    """Return a node's ``meta["val"]`` or ``meta["example_value"]``; None if it has neither."""
    value = node.meta.get("val")
    return node.meta.get("example_value") if value is None else value


def _node_record(node: torch.fx.Node, stage: str, compilation: str) -> NodeRecord:
    origin = provenance_of(node)
    value = fake_value_of(node)
    layout = _tensor_fields(value) if isinstance(value, torch.Tensor) else {}
    if isinstance(value, SYMBOLIC_TYPES):
        layout = {"dtype": f"{type(value).__name__}({value})"}
    return NodeRecord(
        id=node_id(stage, compilation, node),
        name=node.name,
        op=node.op,
        target=format_target(node),
        text=format_node(node),
        inputs=tuple(node_id(stage, compilation, n) for n in node.all_input_nodes),
        origins=origin.nodes,
        span=origin.span,
        stack=origin.stack,
        module=origin.module,
        note=origin.note or _note(node, value),
        placements=placements_of(value),
        **layout,
    )


def _tensor_fields(value: torch.Tensor) -> dict[str, Any]:
    fields: dict[str, Any] = {
        "shape": tuple(map(str, value.shape)),
        "dtype": str(value.dtype).removeprefix("torch."),
        "device": str(value.device),
    }
    if value.layout != torch.strided:
        return fields
    fields["stride"] = tuple(map(str, value.stride()))
    if static_sizes(value.shape) is not None:
        fields["bytes"] = value.numel() * value.element_size()
    return fields


def _note(node: torch.fx.Node, value: Any) -> str:
    if isinstance(value, (tuple, list)):
        return f"{len(value)} results"
    if node.op == "get_attr":
        return "a constant of the graph"
    return ""
