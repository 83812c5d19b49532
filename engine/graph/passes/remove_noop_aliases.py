"""Takes away operators that only give their argument another name: in a functional graph a value needs just one."""

from __future__ import annotations

import torch
import torch.fx

NOOP_ALIAS_OPS = frozenset((torch.ops.aten.detach.default, torch.ops.aten.alias.default))


def remove_noop_aliases(module: torch.fx.GraphModule) -> int:
    """Let users of an alias read what it stands for, in place; returns how many went.

    An alias of an input or constant that is returned as it is stays: a result must be a tensor of its own.
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
    if dropped:
        module.recompile()
    return dropped
