"""Masks of random zeros and ones cross from forward to backward as one byte each, whatever type eager keeps them in."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

import torch
import torch.fx

from engine.ir.graph import NodeOrigin, checkpoint_of, origin_of, set_origin

Node = torch.fx.Node

_MASK = "engine_mask"
"""In ``node.meta`` of a mask that was widened again: equal, to the bit, to what was drawn."""
_DRAWN = (torch.ops.aten.bernoulli.p, torch.ops.aten.bernoulli.default)


@dataclass(frozen=True)
class Mask:
    """What was drawn as booleans, and those in the type that was drawn."""

    packed: Node
    whole: Node


def pack_masks(graph: torch.fx.Graph) -> tuple[Mask, ...]:
    """Let all that reads zeros and ones drawn outside of checkpoints read them by way of booleans."""
    return tuple(_pack(graph, node) for node in list(graph.nodes) if _is_wide(node))


def _is_wide(node: Node) -> bool:
    if node.op != "call_function" or node.target not in _DRAWN or not node.users or checkpoint_of(node) is not None:
        return False
    return node.meta["val"].is_floating_point()  # type: ignore[no-any-return]


def _pack(graph: torch.fx.Graph, drawn: Node) -> Mask:
    value = drawn.meta["val"]
    readers = list(drawn.users)
    with graph.inserting_after(drawn):
        packed = graph.call_function(torch.ops.aten._to_copy.default, (drawn,), {"dtype": torch.bool})
    with graph.inserting_after(packed):
        whole = graph.call_function(torch.ops.aten._to_copy.default, (packed,), {"dtype": value.dtype})
    with value.fake_mode:
        packed.meta = {"val": value.to(torch.bool)}
        whole.meta = {"val": packed.meta["val"].to(value.dtype), _MASK: True}
    for node, note in ((packed, "zeros and ones, as one byte each"), (whole, "zeros and ones, as they were drawn")):
        set_origin(node, NodeOrigin(origin_of(drawn).nodes, origin_of(drawn).span, origin_of(drawn).stack, note=note))
    for reader in readers:
        reader.replace_input_with(drawn, whole)
    return Mask(packed, whole)


def unpack_unsaved(graph: torch.fx.Graph, masks: Collection[Mask], saved: Collection[Node]) -> None:
    """Where the booleans are not what is saved, read again what was drawn itself."""
    for mask in masks:
        if mask.packed not in saved:
            _undo(graph, mask)


def read_drawn(module: torch.fx.GraphModule) -> None:
    """In a forward, which draws the masks, read what was drawn: booleans are there to be saved only."""
    for node in list(module.graph.nodes):
        if _MASK in node.meta:
            packed: Node = node.all_input_nodes[0]
            _undo(module.graph, Mask(packed, node))
    module.recompile()


def _undo(graph: torch.fx.Graph, mask: Mask) -> None:
    mask.whole.replace_all_uses_with(mask.packed.all_input_nodes[0])
    graph.erase_node(mask.whole)
    if not mask.packed.users:
        graph.erase_node(mask.packed)
