"""Pass: adds the bias of a convolution by an addition that fuses with what follows."""

from __future__ import annotations

import torch
import torch.fx

from engine.ir.node_metadata import provenance_of, set_provenance
from engine.ir.node_values import nodes_in
from engine.torch_private.fake_tensors import FakeTensorMode, detect_fake_mode

aten = torch.ops.aten

BIAS_POSITION = 2
"""Position of the bias in the arguments of a convolution."""


def separate_conv_bias(module: torch.fx.GraphModule) -> torch.fx.GraphModule:
    """Replace convolutions with a bias by one without and an addition, in place.

    On a GPU, ATen adds the bias in a kernel of its own anyway.
    """
    is_changed = False
    for node in module.graph.find_nodes(op="call_function", target=aten.convolution.default):
        mode = detect_fake_mode([node.meta["val"]])
        biases = nodes_in(node.args[BIAS_POSITION])
        if biases and mode is not None:
            _separate(module.graph, node, biases[0], mode)
            is_changed = True
    if is_changed:
        module.recompile()
    return module


def _separate(graph: torch.fx.Graph, node: torch.fx.Node, bias: torch.fx.Node, mode: FakeTensorMode) -> None:
    """Add the bias of one convolution to its result, channel by channel."""
    result = node.meta["val"]
    shape = [1, -1, *[1] * (result.dim() - 2)]
    with graph.inserting_after(node):
        by_channel = graph.call_function(aten.view.default, (bias, shape))
    with graph.inserting_after(by_channel):
        added = graph.create_node("call_function", aten.add.Tensor, (node, by_channel), name=f"{node.name}_bias")
    node.replace_all_uses_with(added, delete_user_cb=lambda user: user is not added)
    node.update_arg(BIAS_POSITION, None)
    with mode:
        by_channel.meta["val"] = torch.ops.aten.view.default(bias.meta["val"], shape)
    added.meta["val"] = result
    for new in (by_channel, added):
        set_provenance(new, provenance_of(node))
