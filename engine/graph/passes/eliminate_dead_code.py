"""Removes operators whose results nobody reads, save those that draw random numbers, assert, or have effects."""

from __future__ import annotations

import torch
import torch.fx


def eliminate_dead_code(module: torch.fx.GraphModule) -> int:
    """Erase dead nodes of a functional graph in place; returns how many.

    Random operators stay although dead: they move the generator on, and eager would run them.
    """
    dropped = 0
    for node in reversed(list(module.graph.nodes)):
        if not node.users and is_removable(node):
            module.graph.erase_node(node)
            dropped += 1
    if dropped:
        module.recompile()
    return dropped


def is_removable(node: torch.fx.Node) -> bool:
    """Whether leaving out an unread node could not be noticed."""
    if node.op in ("placeholder", "output", "call_module", "call_method"):
        return False
    target = node.target
    if node.op == "get_attr" or not isinstance(target, torch._ops.OpOverload):
        return node.op == "get_attr" or getattr(target, "__module__", "") in ("_operator", "builtins", "math")
    if (
        target is torch.ops.aten._fused_sdp_choice.default
    ):  # tagged as drawing, for dropout's sake, but only answers a question
        return True
    schema = target._schema
    if schema.is_mutable or not schema.returns:
        return False
    if target.namespace not in ("aten", "prims", "engine"):
        return False
    return torch.Tag.nondeterministic_seeded not in target.tags
