"""Records of FX graphs: their mesh, and a line of text, metadata and origin per node."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable
from typing import Any

import torch
import torch.distributed
import torch.fx

from engine.graph.format_node import format_node, format_target
from engine.graph.passes.recorder import EDIT_DIGEST_KEY, PASS_RECORDS_KEY
from engine.ir.aot.aot_graph import node_id_prefix
from engine.ir.introspection.symbols import is_symbolic
from engine.ir.node_metadata import node_id, provenance_of
from engine.ir.static_sizes import static_sizes
from engine.records.graph import GraphRecord, MeshRecord, NodeRecord


def graph_record(module: torch.fx.GraphModule, stage: str, compilation: str, title: str) -> GraphRecord:
    """Return the record of a traced graph ("fx") or an ATen graph ("aten", "decomposed", ...).

    Nothing is computed.
    """
    nodes = tuple(_node_record(node, node_id_prefix(stage), compilation) for node in module.graph.nodes)
    passes = module.meta.get(PASS_RECORDS_KEY, ())
    mesh = mesh_of([(n, fake_value_of(n)) for n in module.graph.nodes])
    return GraphRecord(
        f"{stage}:{compilation}",
        stage,
        title,
        nodes,
        passes=passes,
        mesh=mesh,
        digest=module.meta.get(EDIT_DIGEST_KEY, ""),
    )


def fake_value_of(node: torch.fx.Node) -> Any:
    """Return a node's ``meta["val"]`` or ``meta["example_value"]``; None if it has neither."""
    value = node.meta.get("val")
    return node.meta.get("example_value") if value is None else value


def _node_record(node: torch.fx.Node, stage: str, compilation: str) -> NodeRecord:
    origin = provenance_of(node)
    value = fake_value_of(node)
    layout = _tensor_fields(value) if isinstance(value, torch.Tensor) else {}
    if is_symbolic(value):
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


def placements_of(value: Any) -> tuple[str, ...]:
    """Return the placements of a DTensor as ``("dp=2: R", "tp=4: S(0)")``; () for others."""
    mesh = _mesh(value)
    if mesh is None:
        return ()
    return tuple(
        f"{n}={mesh.size(i)}: {p}" for i, (n, p) in enumerate(zip(_names(mesh), value.placements, strict=True))
    )


def mesh_of(values: Iterable[tuple[torch.fx.Node, Any]]) -> MeshRecord | None:
    """Return the largest mesh of the DTensors among nodes with their values.

    Without one, it is the world if a node is a collective, else None.
    """
    meshes: dict[Any, None] = {}
    has_collectives = False
    for node, value in values:
        if (mesh := _mesh(value)) is not None:
            meshes[mesh] = None
        has_collectives = has_collectives or getattr(node.target, "namespace", "") == "_c10d_functional"
    distributed = torch.distributed
    if not (meshes or has_collectives) or not distributed.is_available() or not distributed.is_initialized():
        return None
    rank = distributed.get_rank()
    groups = {g: name for mesh in meshes for name, g in _groups_by_dimension(mesh)}
    if not meshes:
        world = distributed.get_world_size()
        return MeshRecord(("world",), (world,), tuple(range(world)), rank)
    root = max((m._get_root_mesh() if hasattr(m, "_get_root_mesh") else m for m in meshes), key=lambda m: m.size())
    names, sizes = tuple(_names(root)), tuple(root.mesh.shape)
    return MeshRecord(names, sizes, tuple(root.mesh.flatten().tolist()), rank, tuple(sorted(groups.items())))


def _mesh(value: Any) -> Any:
    return value.device_mesh if hasattr(value, "placements") else None


def _names(mesh: Any) -> tuple[str, ...]:
    return mesh.mesh_dim_names or tuple(f"dim {i}" for i in range(mesh.ndim))


def _groups_by_dimension(mesh: Any) -> Iterable[tuple[str, str]]:
    with contextlib.suppress(RuntimeError):  # a mesh may be without process groups
        for i, name in enumerate(_names(mesh)):
            yield name, mesh.get_group(i).group_name
