"""Nodes that the tracer may compute: pure operations on constants and small tensors."""

from __future__ import annotations

import torch
import torch.fx

from engine.ir.graph_callable import graph_callable_of
from engine.ir.introspection.operator_facts import facts_of_node

_PURE_OPS = frozenset(
    "abs add all any arange bitwise_and bitwise_not bitwise_or bitwise_xor bool ceil clamp clip div eq float floor floor_divide "
    "full ge getitem __getitem__ gt int isinf item le logical_and logical_not logical_or logical_xor long lt max maximum min "
    "minimum mul multiply ne neg not_ ones pow remainder reshape round rsub sub subtract sum sym_float sym_int sym_max "
    "sym_min to tril triu true_divide trunc "
    "unsqueeze squeeze view zeros".split()
)
"""Pure operations, by their names in ATen."""


def is_pure_node(node: torch.fx.Node) -> bool:
    """Return True if the operation is pure and its result was not mutated."""
    if not all(map(counts_writes, node.users)):
        return False
    is_method = node.op == "call_method"
    name = node.target if is_method else getattr(node.target, "__name__", "")
    module = "torch" if is_method else str(getattr(node.target, "__module__", None))
    fake = node.meta.get("example_value")
    is_as_made = not isinstance(fake, torch.Tensor) or (not fake.is_inference() and fake._version == 0)
    facts = facts_of_node(node)
    is_pure = not facts.writes and (facts.name or name) in _PURE_OPS
    return is_pure and is_as_made and module.partition(".")[0] in _PURE_OP_MODULES


def counts_writes(user: torch.fx.Node) -> bool:
    """Return True if the operation counts all its writes in tensor versions.

    torch operations do, except those that update running statistics or check gradients for infinities, and some
    composites that write to ``out=``.
    """
    if user.op == "call_method" or graph_callable_of(user).counts_writes:
        return True
    home = str(getattr(user.target, "__module__", None)).partition(".")[0]
    facts = facts_of_node(user)
    is_counted = not (facts.running_stats or facts.has_uncounted_writes or "out" in user.kwargs)
    return is_counted and home in _PURE_OP_MODULES


_PURE_OP_MODULES = frozenset(("torch", "None", "_operator", "builtins", "math"))
