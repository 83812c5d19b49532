"""Pass: adds the bias of a convolution, and sums its gradient, in fused kernels."""

from __future__ import annotations

import operator

import torch
import torch.fx

from engine.ir.node_metadata import provenance_of, set_provenance
from engine.ir.node_values import nodes_in
from engine.torch_private.fake_tensors import FakeTensorMode, detect_fake_mode

aten = torch.ops.aten

BIAS_POSITION = 2
"""Position of the bias among a convolution's arguments, and of its gradient's."""
MASK_POSITION = 10
"""Position of ``output_mask`` in the arguments of the backward: the gradients to compute."""


def separate_conv_bias(module: torch.fx.GraphModule) -> torch.fx.GraphModule:
    """Separate biases from convolutions, and their gradients from the backwards.

    On a GPU, ATen does either in a kernel of its own anyway.
    """
    is_changed = False
    for node in module.graph.find_nodes(op="call_function", target=aten.convolution.default):
        mode = detect_fake_mode([node.meta["val"]])
        biases = nodes_in(node.args[BIAS_POSITION])
        if biases and mode is not None:
            _separate(module.graph, node, biases[0], mode)
            is_changed = True
    for node in list(module.graph.find_nodes(op="call_function", target=aten.convolution_backward.default)):
        is_changed |= _separate_gradient(module.graph, node)
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


def _separate_gradient(graph: torch.fx.Graph, node: torch.fx.Node) -> bool:
    """Sum the gradient of one convolution's bias; return True if it has one."""
    gradient = nodes_in(node.args[0])[0]
    mode, computed = detect_fake_mode([gradient.meta["val"]]), list(node.args[MASK_POSITION])  # type: ignore[arg-type]
    used = [user for user in node.users if user.target is operator.getitem and user.args[1] == BIAS_POSITION]
    if mode is None or not computed[BIAS_POSITION] or not used:
        return False
    (used_result,) = used
    if used_result.meta["val"].dtype != gradient.meta["val"].dtype:
        return False
    dims = [d for d in range(gradient.meta["val"].dim()) if d != 1]
    with graph.inserting_after(node):
        summed = graph.create_node("call_function", aten.sum.dim_IntList, (gradient, dims), name=f"{node.name}_bias")
    summed.meta["val"] = used_result.meta["val"]
    set_provenance(summed, provenance_of(node))
    used_result.replace_all_uses_with(summed)
    graph.erase_node(used_result)
    computed[BIAS_POSITION] = False
    node.update_arg(MASK_POSITION, computed)
    node.meta["val"] = (*node.meta["val"][:BIAS_POSITION], None)
    if not node.users:
        graph.erase_node(node)
    return True
