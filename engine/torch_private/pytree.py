"""Nested containers of tensors, in Python."""

from __future__ import annotations

from typing import TYPE_CHECKING

from engine.torch_private.entries import Entry, Feature, Kind, load

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
    Entry(
        "torch.utils._pytree:SUPPORTED_NODES",
        Kind.TABLE,
        "Container types that the user registered.",
        without="such containers break the graph",
    ),
    Entry(
        "torch.utils._pytree:TreeSpec",
        Kind.CLASS,
        "Structure of a nested container.",
        without="structures cannot be stored",
        off=Feature.COMPILATION,
    ),
    Entry(
        "torch.utils._pytree:keystr",
        Kind.FUNCTION,
        "Writes the path of a leaf.",
        without="paths of arguments are not shown",
        calls=("(a)",),
    ),
    Entry(
        "torch.utils._pytree:tree_flatten",
        Kind.FUNCTION,
        "Lists the leaves and the structure.",
        without="nothing can be traced",
        off=Feature.COMPILATION,
        calls=("(a)",),
    ),
    Entry(
        "torch.utils._pytree:tree_flatten_with_path",
        Kind.FUNCTION,
        "Lists the leaves with their paths.",
        without="paths of arguments are not shown",
        calls=("(a)",),
    ),
    Entry(
        "torch.utils._pytree:tree_leaves",
        Kind.FUNCTION,
        "Lists the leaves.",
        without="nothing can be traced",
        off=Feature.COMPILATION,
        calls=("(a)",),
    ),
    Entry(
        "torch.utils._pytree:tree_map",
        Kind.FUNCTION,
        "Maps the leaves.",
        without="nothing can be traced",
        off=Feature.COMPILATION,
        calls=("(a, b)",),
    ),
    Entry(
        "torch.utils._pytree:tree_map_only",
        Kind.FUNCTION,
        "Maps the leaves of a type.",
        without="nothing can be traced",
        off=Feature.COMPILATION,
    ),
    Entry(
        "torch.utils._pytree:tree_unflatten",
        Kind.FUNCTION,
        "Builds a container from leaves and structure.",
        without="nothing can be traced",
        off=Feature.COMPILATION,
        calls=("(a, b)",),
    ),
)

if not TYPE_CHECKING:
    load(globals(), ENTRIES)
