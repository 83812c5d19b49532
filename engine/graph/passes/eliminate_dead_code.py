"""Dead code elimination; preserves random ops, assertions and effectful ops."""

from __future__ import annotations

import torch
import torch.fx

from engine.ir.introspection.operator_facts import facts_of_overload, runs_for_effect
from engine.ir.node_values import called_overload

_NUMBER_MODULES = ("_operator", "builtins", "math")
_NUMBER_FUNCTIONS = frozenset(
    (torch.sym_float, torch.sym_int, torch.sym_ite, torch.sym_max, torch.sym_min, torch.sym_not, torch.sym_sum)
)
"""Functions of torch that compute a number from symbolic numbers."""


def eliminate_dead_code(module: torch.fx.GraphModule) -> int:
    """Erase dead nodes of a functional graph in place; return their number.

    Dead random ops remain: they advance the generator, as in eager. The caller recompiles the module.
    """
    dropped = 0
    for node in reversed(list(module.graph.nodes)):
        if not node.users and is_removable(node):
            module.graph.erase_node(node)
            dropped += 1
    return dropped


def is_removable(node: torch.fx.Node) -> bool:
    """Return True if removing an unused node has no observable effect."""
    if node.op in ("placeholder", "output", "call_module", "call_method"):
        return False
    target = called_overload(node.target)
    if node.op == "get_attr" or target is None:
        computes_number = node.target in _NUMBER_FUNCTIONS or getattr(node.target, "__module__", "") in _NUMBER_MODULES
        return node.op == "get_attr" or computes_number
    facts = facts_of_overload(target)
    return not (facts.writes or facts.draws_random or runs_for_effect(target))
