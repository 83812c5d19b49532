"""Torch's private pytree functions: nested containers of tensors, in Python."""

from typing import TYPE_CHECKING

from engine.torch_private.entries import load_into

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

ENTRIES = load_into(globals())("""
If missing, such containers break the graph:
    table torch.utils._pytree:SUPPORTED_NODES -- Container types that the user registered.
If missing, structures cannot be stored (COMPILATION):
    class torch.utils._pytree:TreeSpec -- Structure of a nested container.
If missing, paths of arguments are not shown:
    function torch.utils._pytree:keystr (a) -- Writes the path of a leaf.
    function torch.utils._pytree:tree_flatten_with_path (a) -- Lists the leaves with their paths.
If missing, nothing can be traced (COMPILATION):
    function torch.utils._pytree:tree_flatten (a) -- Lists the leaves and the structure.
    function torch.utils._pytree:tree_leaves (a) -- Lists the leaves.
    function torch.utils._pytree:tree_map (a, b) -- Maps the leaves.
    function torch.utils._pytree:tree_map_only -- Maps the leaves of a type.
    function torch.utils._pytree:tree_unflatten (a, b) -- Builds a container from leaves and structure.
""")
