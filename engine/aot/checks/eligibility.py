"""Run every eligibility check and return why a graph cannot be functionalized."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.fx

from engine.aot.checks.as_strided_bounds import check_as_strided_bounds
from engine.aot.checks.bool_alias_writes import check_bool_alias_write
from engine.aot.checks.dtype_errors import check_dtype_errors
from engine.aot.checks.inference_tensor_views import check_inference_tensor_views
from engine.aot.checks.no_grad_views import check_no_grad_views
from engine.aot.checks.overlapping_writes import check_overlapping_write
from engine.aot.checks.unsafe_views import check_unsafe_views
from engine.aot.checks.unsupported_inputs import check_input_tensor
from engine.aot.checks.unsupported_ops import check_unsupported_op
from engine.aot.checks.untracked_writes import check_untracked_writes
from engine.aot.layout_mutation import is_layout_mutated
from engine.ir.traced_frame import GraphInput


def why_not_functional(graph: torch.fx.GraphModule, inputs: Sequence[GraphInput], *, trains: bool) -> str:
    """Return the reason why this graph must run as traced; empty if it can be functionalized."""
    for i in inputs:
        if isinstance(i.example_value, torch.Tensor) and (reason := check_input_tensor(i.example_value, trains=trains)):
            return f"{i.name} is {reason}"
        if isinstance(i.example_value, torch.Generator):
            return f"{i.name} is a torch.Generator"
        if (
            isinstance(i.example_value, torch.Tensor)
            and i.example_value.requires_grad
            and is_layout_mutated(i.fake, i.example_value)
        ):
            return f"an in-place operation changes the shape or strides of {i.name}, which requires grad"
    for node in graph.graph.nodes:
        if reason := check_unsupported_op(node) or check_overlapping_write(node) or check_dtype_errors(node):
            return f"{node.name} {reason}"
    whole = (
        check_untracked_writes,
        check_no_grad_views,
        check_as_strided_bounds,
        check_bool_alias_write,
        check_inference_tensor_views,
        check_unsafe_views,
    )
    return next((reason for rule in whole if (reason := rule(graph, inputs))), "")
