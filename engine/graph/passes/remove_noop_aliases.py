"""Removes no-op aliases: a functional graph needs only one node per value."""

from __future__ import annotations

import torch
import torch.fx

NOOP_ALIAS_OPS = frozenset((torch.ops.aten.detach.default, torch.ops.aten.alias.default))


def remove_noop_aliases(module: torch.fx.GraphModule) -> int:
    """Replace aliases by their input, in place; return the number of removed nodes.

    An alias of an input or constant that is returned directly remains: a result must be a separate tensor. The
    caller recompiles the module.
    """
    output = next(n for n in reversed(module.graph.nodes) if n.op == "output")
    dropped = 0
    for node in list(module.graph.nodes):
        if node.op != "call_function" or node.target not in NOOP_ALIAS_OPS:
            continue
        (source,) = node.all_input_nodes
        if source.op in ("placeholder", "get_attr") and output in node.users:
            continue
        node.replace_all_uses_with(source)
        module.graph.erase_node(node)
        dropped += 1
    return dropped
