"""Torch's private pytree functions: nested containers of tensors, in Python."""

from __future__ import annotations

from typing import TYPE_CHECKING

from engine.torch_private.entries import Feature, IfMissing, declare, declare_class, declare_table, load

if TYPE_CHECKING:
    from torch.utils._pytree import (
        SUPPORTED_NODES,
        TreeSpec,
        keystr,
        tree_flatten,
        tree_flatten_with_path,
        tree_leaves,
        tree_map,
        tree_map_only,
        tree_unflatten,
    )

ENTRIES = (
    *IfMissing("such containers break the graph").entries(
        declare_table("torch.utils._pytree:SUPPORTED_NODES", "Container types that the user registered."),
    ),
    *IfMissing("structures cannot be stored", Feature.COMPILATION).entries(
        declare_class("torch.utils._pytree:TreeSpec", "Structure of a nested container."),
    ),
    *IfMissing("paths of arguments are not shown").entries(
        declare("torch.utils._pytree:keystr", "Writes the path of a leaf.", "(a)"),
        declare("torch.utils._pytree:tree_flatten_with_path", "Lists the leaves with their paths.", "(a)"),
    ),
    *IfMissing("nothing can be traced", Feature.COMPILATION).entries(
        declare("torch.utils._pytree:tree_flatten", "Lists the leaves and the structure.", "(a)"),
        declare("torch.utils._pytree:tree_leaves", "Lists the leaves.", "(a)"),
        declare("torch.utils._pytree:tree_map", "Maps the leaves.", "(a, b)"),
        declare("torch.utils._pytree:tree_map_only", "Maps the leaves of a type."),
        declare("torch.utils._pytree:tree_unflatten", "Builds a container from leaves and structure.", "(a, b)"),
    ),
)

if not TYPE_CHECKING:
    load(globals(), ENTRIES)
