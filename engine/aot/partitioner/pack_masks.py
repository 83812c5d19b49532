"""Save random masks of zeros and ones for backward as one byte per element.

Eager saves them in the floating-point dtype in which they were sampled.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

import torch
import torch.fx

from engine.aot.node_properties import output_args
from engine.ir.node_metadata import NodeProvenance, checkpoint_of, provenance_of, set_provenance

Node = torch.fx.Node

_UNPACKED_KEY = "engine_mask"
"""Key in ``node.meta`` of an unpacked mask; it equals the sampled mask bitwise."""
_BERNOULLI_OPS = (torch.ops.aten.bernoulli.p, torch.ops.aten.bernoulli.default)


@dataclass(frozen=True)
class PackedMask:
    """A sampled mask packed as booleans, and its copy unpacked to the original dtype."""

    packed: Node
    unpacked: Node


def pack_masks(graph: torch.fx.Graph) -> tuple[PackedMask, ...]:
    """Route all readers of masks sampled outside of checkpoints through boolean copies."""
    returned = set(output_args(graph))
    return tuple(_pack(graph, node) for node in list(graph.nodes) if _is_float_mask(node) and node not in returned)


def _is_float_mask(node: Node) -> bool:
    if (
        node.op != "call_function"
        or node.target not in _BERNOULLI_OPS
        or not node.users
        or checkpoint_of(node) is not None
    ):
        return False
    return node.meta["val"].is_floating_point()  # type: ignore[no-any-return]


def _pack(graph: torch.fx.Graph, drawn: Node) -> PackedMask:
    value = drawn.meta["val"]
    readers = list(drawn.users)
    with graph.inserting_after(drawn):
        packed = graph.call_function(torch.ops.aten._to_copy.default, (drawn,), {"dtype": torch.bool})
    with graph.inserting_after(packed):
        converted = graph.call_function(torch.ops.aten._to_copy.default, (packed,), {"dtype": value.dtype})
    with value.fake_mode:
        packed.meta = {"val": value.to(torch.bool)}
        converted.meta = {"val": packed.meta["val"].to(value.dtype), _UNPACKED_KEY: True}
    for node, note in ((packed, "the mask, packed to one byte per element"), (converted, "the mask, unpacked")):
        set_provenance(
            node,
            NodeProvenance(
                provenance_of(drawn).nodes, provenance_of(drawn).span, provenance_of(drawn).stack, note=note
            ),
        )
    for reader in readers:
        reader.replace_input_with(drawn, converted)
    return PackedMask(packed, converted)


def unpack_unsaved_masks(graph: torch.fx.Graph, masks: Collection[PackedMask], saved: Collection[Node]) -> None:
    """Remove the packing of masks whose booleans are not saved."""
    for mask in masks:
        if mask.packed not in saved:
            _remove_packing(graph, mask)


def use_unpacked_masks(module: torch.fx.GraphModule) -> None:
    """Let a forward graph read the sampled masks directly; the booleans are only for saving."""
    unpacked: list[Node] = [n for n in module.graph.nodes if _UNPACKED_KEY in n.meta]
    for node in unpacked:
        _remove_packing(module.graph, PackedMask(node.all_input_nodes[0], node))
    if unpacked:
        module.recompile()


def _remove_packing(graph: torch.fx.Graph, mask: PackedMask) -> None:
    mask.unpacked.replace_all_uses_with(mask.packed.all_input_nodes[0])
    graph.erase_node(mask.unpacked)
    if not mask.packed.users:
        graph.erase_node(mask.packed)
