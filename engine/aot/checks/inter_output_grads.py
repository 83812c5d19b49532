"""Check for later code that may differentiate one output with respect to another.

For autograd, outputs of one compiled graph do not depend on each other.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.fx

from engine.aot.checks.base import CheckedCall
from engine.aot.fallback_kinds import AotFallback
from engine.aot.node_properties import example_tensors, output_args
from engine.ir.fallback import Fallback
from engine.ir.node_values import nodes_in
from engine.ir.reachable import reachable


def check_inter_output_grads(call: CheckedCall) -> Fallback | None:
    """Return a fallback if later code may differentiate an output with respect to another."""
    results = [n for n in output_args(call.traced.graph) if _requires_grad(n)] if call.trains else []
    for asked in results:
        if asked.op == "placeholder":
            continue
        for other in _autograd_dependents(asked):
            if other in results and other.meta["example_value"] is not asked.meta["example_value"]:
                return Fallback(
                    AotFallback.INTER_OUTPUT_GRADIENT,
                    f"later code calls {call.autograd_use} and may compute the gradient of {other.name} with respect to {asked.name}; "
                    f"both are outputs of this graph",
                    other.name,
                )
    return None


def _autograd_dependents(node: torch.fx.Node) -> list[torch.fx.Node]:
    """Return all nodes that depend on ``node`` through autograd."""
    dependents = reachable([node], lambda n: filter(_requires_grad, n.users))
    return [n for n in dependents if n is not node]


def _requires_grad(node: Any) -> bool:
    """Return True if autograd tracks the node's value, or any of its values."""
    return any(t.requires_grad for n in nodes_in((node,)) if n.op != "output" for t in example_tensors(n))
