"""Placements of DTensors and the mesh of devices that a graph runs on."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable
from typing import Any

import torch
import torch.distributed
import torch.fx

from engine.records.graph import MeshRecord


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
