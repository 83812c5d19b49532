"""Records of captured backwards: autograd nodes in eager order and the captured graph."""

from __future__ import annotations

import torch.fx

from engine.autograd.build_captured_graph import node_call_index
from engine.autograd.cache_miss import CaptureKey, miss_reason
from engine.autograd.capture import BackwardCapture, short_name
from engine.autograd.captured_backward import CapturedBackward
from engine.autograd.execution_order import AutogradNode
from engine.graph.to_records import graph_record
from engine.group_pairs import group_pairs
from engine.ir.node_metadata import node_id
from engine.records.autograd import AutogradNodeRecord, BackwardRecord

SHOWN_HOOK_KINDS = tuple("tensor_pre_hook retain_grad pre_hook post_hook post_acc_grad_hook unpack_hook python".split())


def backward_record(backward: CapturedBackward, before: tuple[CaptureKey, ...]) -> BackwardRecord:
    """Return the record of a capture; ``before``: keys of the captures that did not match."""
    captured = graph_record(backward.graph, "captured", backward.id, "captured backward")
    return BackwardRecord(
        backward.id,
        miss_reason(backward.key, before),
        autograd_node_records(backward, backward.graph),
        (captured,),
        inputs=len(backward.key.inputs),
        symbolic_sizes=backward.key.symbolic_size_count,
        notes=backward.notes,
        seconds=backward.seconds,
    )


def autograd_node_records(backward: CapturedBackward, module: torch.fx.GraphModule) -> tuple[AutogradNodeRecord, ...]:
    """Return records of autograd's nodes, with the nodes of the captured graph for each."""
    indices = ((node_call_index(node), node_id("captured", backward.id, node)) for node in module.graph.nodes)
    became = group_pairs(indices)
    positions = {node_index: n for n, node_index in enumerate(backward.execution_order)}
    return tuple(
        AutogradNodeRecord(
            autograd_node_id(backward.id, n),
            short_name(node.name),
            n,
            positions.get(n, n),
            tuple(autograd_node_id(backward.id, t[0]) for t in node.next_edges if t is not None),
            tuple(became.get(n, ())),
            tuple(k for k in backward.key.step_kinds[n] if k in SHOWN_HOOK_KINDS),
        )
        for n, node in enumerate(backward.nodes)
    )


def autograd_node_id(backward: str, index: int) -> str:
    """Return the id of an autograd node."""
    return f"autograd:{backward}:{index}"


def nodes_from_capture(captured: BackwardCapture) -> tuple[AutogradNode, ...]:
    """Return nodes with names only, in capture order.

    Used if a walk of autograd's graph finds other nodes than the capture.
    """
    return tuple(AutogradNode(c.name, 0, ()) for c in captured.calls)
