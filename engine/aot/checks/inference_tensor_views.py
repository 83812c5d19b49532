"""Views of inference tensors."""

from __future__ import annotations

from engine.aot.checks.base import CheckedCall
from engine.aot.fallback_kinds import AotFallback
from engine.aot.node_properties import output_args
from engine.aot.storage_geometry import storage_id
from engine.ir.fallback import Fallback
from engine.ir.node_values import example_tensor


def check_inference_tensor_views(call: CheckedCall) -> Fallback | None:
    """Return a fallback if an output aliases an inference tensor input.

    Fake tensors do not know which views of inference tensors have version counters and may be mutated, and such a view
    cannot be regenerated.
    """
    inference_inputs = [i for i in call.inputs if i.is_inference]
    storages = {storage_id(i.fake) for i in inference_inputs if i.is_tensor}
    for node in output_args(call.graph.graph) if storages else ():
        operand = example_tensor(node)
        if (
            operand is not None
            and storage_id(operand) in storages
            and all(operand is not i.fake for i in inference_inputs)
        ):
            return Fallback.for_node(
                node, AotFallback.INFERENCE_ALIAS_RETURNED, "shares memory with an inference tensor"
            )
    return None
