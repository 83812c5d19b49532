"""Pass: converts a bool mask that attention calls share into an additive bias once."""

from __future__ import annotations

import torch
import torch.fx

from engine.ir.node_metadata import provenance_of, set_provenance
from engine.ir.node_values import called_overload, nodes_in
from engine.torch_private.fake_tensors import detect_fake_mode

aten = torch.ops.aten

ATTENTION_OP = "engine::attention"
MASK_POSITION = 3
"""Position of the mask in the arguments of attention."""


def bool_to_bias_mask(module: torch.fx.GraphModule) -> torch.fx.GraphModule:
    """Replace bool masks by biases, in place: 0 where a key is visible, -inf elsewhere.

    ATen would build the same bias in each attention call.
    """
    biases: dict[tuple[torch.fx.Node, torch.dtype], torch.fx.Node] = {}
    for node in list(module.graph.nodes):
        mask = _bool_mask_of(node)
        if mask is None:
            continue
        key = (mask, node.args[0].meta["val"].dtype)
        if key not in biases and (numbers := _make_bias(module.graph, node, *key)) is not None:
            biases[key] = numbers
        if key in biases:
            node.update_arg(MASK_POSITION, biases[key])
    if biases:
        module.recompile()
    return module


def _bool_mask_of(node: torch.fx.Node) -> torch.fx.Node | None:
    """Return the bool mask of an attention call, None without one."""
    called = called_overload(node.target)
    if called is None or called._schema.name != ATTENTION_OP:
        return None
    masks = nodes_in(node.args[MASK_POSITION : MASK_POSITION + 1])
    return next((m for m in masks if m.meta["val"].dtype == torch.bool), None)


def _make_bias(
    graph: torch.fx.Graph, node: torch.fx.Node, mask: torch.fx.Node, dtype: torch.dtype
) -> torch.fx.Node | None:
    mode = detect_fake_mode([mask.meta["val"]])
    if mode is None:
        return None
    device = mask.meta["val"].device
    with graph.inserting_before(node), mode:
        visible, hidden = (
            graph.call_function(aten.full.default, ([], number), {"dtype": dtype, "device": device})
            for number in (0.0, float("-inf"))
        )
        chosen = graph.create_node(
            "call_function", aten.where.self, (mask, visible, hidden), name=f"{mask.name}_numbers"
        )
        for constant in (visible, hidden):
            constant.meta["val"] = torch.empty((), dtype=dtype, device=device)
        chosen.meta["val"] = torch.empty_like(mask.meta["val"], dtype=dtype)
    for new in (visible, hidden, chosen):
        set_provenance(new, provenance_of(mask))
    return chosen
