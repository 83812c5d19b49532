"""Writes to memory aliased as bool and as number."""

from __future__ import annotations

import torch
import torch.fx

from engine.aot.checks.base import CheckedCall
from engine.aot.fallback_kinds import AotFallback
from engine.aot.node_properties import may_mutate, traced_tensors
from engine.aot.storage_geometry import storage_id
from engine.ir.fallback import Fallback
from engine.ir.node_values import example_tensor


def check_bool_alias_writes(call: CheckedCall) -> Fallback | None:
    """Return a fallback if mutated memory is viewed both as bool and as numbers.

    Eager writes any number there; a functional graph returns 0 or 1.
    """
    tensors = [*(i.fake for i in call.inputs if i.is_tensor), *traced_tensors(call.graph)]
    truths = {storage_id(v) for v in tensors if v.dtype is torch.bool}
    both = truths & {storage_id(v) for v in tensors if v.dtype is not torch.bool}
    for node in call.graph.graph.nodes if both else ():
        if may_mutate(node) and any(
            storage_id(v) in both for a in node.all_input_nodes if (v := example_tensor(a)) is not None
        ):
            return Fallback.for_node(
                node, AotFallback.BOOL_ALIAS_WRITE, "mutates memory that is viewed both as bool and as numbers"
            )
    return None
