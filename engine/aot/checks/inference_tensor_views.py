"""Views of inference tensors."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.fx

from engine.aot.node_properties import example_tensor, output_args
from engine.aot.storage_geometry import (
    storage_id,
)
from engine.ir.traced_frame import GraphInput


def check_inference_tensor_views(graph: torch.fx.GraphModule, inputs: Sequence[GraphInput]) -> str:
    """Return a reason if an output aliases an inference tensor input; else empty.

    Fake tensors do not know which views of inference tensors have version counters and may be mutated, and such a view
    cannot be regenerated.
    """
    if torch.is_inference_mode_enabled():
        return ""
    given = [i for i in inputs if isinstance(i.example_value, torch.Tensor) and i.example_value.is_inference()]
    storages = {storage_id(i.fake) for i in given if isinstance(i.fake, torch.Tensor)}
    for node in output_args(graph.graph) if storages else ():
        seen = example_tensor(node)
        if seen is not None and storage_id(seen) in storages and all(seen is not i.fake for i in given):
            return f"{node.name} shares memory with an inference tensor"
    return ""
