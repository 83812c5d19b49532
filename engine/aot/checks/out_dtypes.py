"""``out=`` tensors of another dtype than the result of their operator."""

from __future__ import annotations

from typing import Any

import torch
import torch.fx

from engine.aot.checks.base import CheckedCall
from engine.aot.fallback_kinds import AotFallback
from engine.aot.storage_geometry import with_hint_sizes
from engine.ir.fallback import Fallback
from engine.ir.introspection.operator_facts import facts_of_node
from engine.ir.node_values import example_tensor, tensors_in
from engine.torch_private.dispatch import disable_current_modes


def check_out_dtypes(call: CheckedCall) -> Fallback | None:
    """Return a fallback if an ``out=`` tensor may have another dtype than the result.

    Eager then computes in that dtype, converts the result, or raises; the functional form always converts.
    """
    for node in call.graph.graph.nodes:
        if not facts_of_node(node).has_out or not (written := tensors_in(_example_values(node.kwargs.get("out")))):
            continue
        if [t.dtype for t in written] != _result_dtypes(node):
            clause = "writes to an out= tensor of another dtype than its result"
            return Fallback.for_node(node, AotFallback.OUT_OF_OTHER_DTYPE, clause)
    return None


def _example_values(operands: Any) -> Any:
    return torch.fx.node.map_arg(operands, lambda n: n.meta.get("example_value"))


def _result_dtypes(node: torch.fx.Node) -> list[torch.dtype]:
    """Return the dtypes of the results without ``out=``; [] if the call raises.

    The operator runs on tensors without data.
    """
    function: Any = getattr(node.target, "overloadpacket", node.target)
    kwargs = {name: value for name, value in node.kwargs.items() if name != "out"}
    try:
        args, kwargs = torch.fx.node.map_arg((node.args, kwargs), _without_data)
        with disable_current_modes(), torch.no_grad(), torch.device("meta"):
            return [t.dtype for t in tensors_in(function(*args, **kwargs))]
    except Exception:
        return []


def _without_data(node: torch.fx.Node) -> Any:
    if (tensor := example_tensor(node)) is None:
        number: Any = node.meta.get("example_value")
        return number.node.hint if hasattr(number, "node") else number
    tensor = with_hint_sizes(tensor)
    return torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device="meta")
