"""Merges equal all-reduces, as those of a gradient that several operators read."""

from __future__ import annotations

from typing import Any

import torch
import torch.fx

from engine.ir.introspection.operator_facts import facts_of_overload
from engine.ir.node_values import called_overload

NAMESPACE = "_c10d_functional"


def waits_for_ranks(module: torch.fx.GraphModule) -> bool:
    """Return True if a graph waits for other ranks.

    Its collectives are effects: the executors keep them all, in order, whatever is faster on a rank.
    """
    return any(True for node in module.graph.nodes if _is_collective(node, "wait_tensor"))


def merge_collectives(module: torch.fx.GraphModule) -> int:
    """Replace all-reduces by an earlier equal one, in place; return how many nodes are erased.

    DTensor reduces a partial gradient for each operator that reads it: three times in AdamW. Gathers are not merged: their
    results would take more memory for longer. The caller recompiles the module.
    """
    earlier: dict[Any, torch.fx.Node] = {}
    dropped = 0
    for wait in list(module.graph.nodes):
        reduction = waited_all_reduce(wait)
        if reduction is None:
            continue
        first = earlier.setdefault((reduction.target, reduction.args), wait)
        if first is not wait and all(map(_makes_new_tensor, wait.users)):
            wait.replace_all_uses_with(first)
            module.graph.erase_node(wait)
            module.graph.erase_node(reduction)
            dropped += 2
    return dropped


def waited_all_reduce(wait: torch.fx.Node) -> torch.fx.Node | None:
    """Return the all-reduce whose result only this node waits for; None for other nodes."""
    if not _is_collective(wait, "wait_tensor"):
        return None
    (reduction,) = wait.all_input_nodes
    return reduction if _is_collective(reduction, "all_reduce") and len(reduction.users) == 1 else None


def _is_collective(node: torch.fx.Node, name: str) -> bool:
    called = called_overload(node.target)
    return called is not None and called._schema.name == f"{NAMESPACE}::{name}"


def _makes_new_tensor(user: torch.fx.Node) -> bool:
    """Return True if no result of a node shares memory with what it reads."""
    called = called_overload(user.target)
    if called is None or called.namespace != "aten":
        return False
    facts = facts_of_overload(called)
    return not (facts.is_view or facts.hides_alias)
