"""Mutations of inference tensors."""

from __future__ import annotations

from engine.aot.checks.base import CheckedCall
from engine.aot.fallback_kinds import AotFallback
from engine.aot.node_properties import may_mutate, written_tensors
from engine.aot.storage_geometry import storage_id
from engine.ir.fallback import Fallback


def check_inference_tensor_writes(call: CheckedCall) -> Fallback | None:
    """Return a fallback if a node may mutate an inference tensor input through an alias.

    Outside of inference mode, ``detach()`` of an inference tensor may be mutated, a view may not. The new value cannot be
    copied back into the tensor itself.
    """
    storages = {storage_id(i.fake) for i in call.inputs if i.is_inference and i.is_tensor}
    for node in filter(may_mutate, call.graph.graph.nodes):
        if any(storage_id(t) in storages for t in written_tensors(node)):
            return Fallback.for_node(node, AotFallback.INFERENCE_INPUT_WRITTEN, "may mutate an inference tensor")
    return None
