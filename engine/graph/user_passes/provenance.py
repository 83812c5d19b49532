"""Give nodes that a pass created the sources of the nodes that they replace."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch.fx

from engine.ir.node_metadata import (
    BACKWARD_KEY,
    NO_PROVENANCE,
    NodeProvenance,
    is_backward_node,
    provenance_of,
    set_provenance,
)
from engine.ir.reachable import reachable


def set_sources(before: torch.fx.Graph, after: torch.fx.Graph, created: Sequence[torch.fx.Node], name: str) -> None:
    """Set the provenance of created nodes to that of the nodes that they replace.

    Created nodes replace the removed nodes that had the same users, or else the same inputs, and all removed nodes
    that these were computed from.
    """
    names_after = {node.name for node in after.nodes}
    removed = [node for node in before.nodes if node.name not in names_after]
    new = set(created)
    for group in _connected_groups(created, new):
        replaced = _replaced_by(group, new, removed)
        for node in group:
            _set_source(node, replaced, f"made by the pass {name}")


def _set_source(node: torch.fx.Node, replaced: Sequence[torch.fx.Node], note: str) -> None:
    own = provenance_of(node)
    if own is NO_PROVENANCE and replaced:
        node.meta["custom"] = {**replaced[-1].meta.get("custom", {}), **node.meta.get("custom", {})}
        provenances = [provenance_of(n) for n in replaced]
        last = next((f for f in reversed(provenances) if f.span is not None), provenances[-1])
        own = NodeProvenance(
            tuple(dict.fromkeys(n for f in provenances for n in f.nodes)), last.span, last.stack, last.module
        )
    elif own is NO_PROVENANCE and node.all_input_nodes:
        own = provenance_of(node.all_input_nodes[-1])
    set_provenance(node, NodeProvenance(own.nodes, own.span, own.stack, own.module, note))
    if any(map(is_backward_node, node.all_input_nodes)):
        node.meta["custom"][BACKWARD_KEY] = True


def _connected_groups(created: Sequence[torch.fx.Node], new: set[torch.fx.Node]) -> Iterable[list[torch.fx.Node]]:
    """Yield the connected groups of created nodes, each in the order of the graph."""
    group_of: dict[torch.fx.Node, list[torch.fx.Node]] = {}
    for node in created:
        group = [node]
        for other in {id(g): g for i in node.all_input_nodes if i in new and (g := group_of.get(i))}.values():
            group = [*other, *group]
        for member in group:
            group_of[member] = group
    return list({id(g): g for g in group_of.values()}.values())


def _replaced_by(
    group: Sequence[torch.fx.Node], new: set[torch.fx.Node], removed: Sequence[torch.fx.Node]
) -> list[torch.fx.Node]:
    readers = {u.name for n in group for u in n.users if u not in new}
    read = {i.name for n in group for i in n.all_input_nodes if i not in new}
    ends = [r for r in removed if any(u.name in readers for u in r.users)]
    ends = ends or [r for r in removed if any(i.name in read for i in r.all_input_nodes)]
    gone = set(removed)
    replaced = set(reachable(ends, lambda n: gone.intersection(n.all_input_nodes)))
    return [r for r in removed if r in replaced]
