"""How provenance travels in fx graphs: one value in ``node.meta["custom"]``, kept by make_fx and by every pass of ours."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch.fx

from engine.records.bytecode import Span

PROVENANCE_KEY = "engine_origin"
"""Where in ``node.meta["custom"]`` an ``OriginOf`` lives. torch keeps "custom" through make_fx on forward nodes, and drops other keys."""


CHECKPOINT_KEY = "engine_checkpoint"
"""Where in ``node.meta["custom"]`` the number of the activation checkpoint is that a node was traced inside of."""


CHECKPOINT_POLICY_KEY = "engine_policy"
"""Where in ``node.meta["custom"]`` the policy of the node's checkpoint is, which says of each ATen operator whether its result is saved."""


BACKWARD_KEY = "engine_backward"
"""In ``node.meta["custom"]`` of nodes that were traced while autograd ran."""


PADDED_ROWS_KEY = "engine_rows_apart"
"""Where in ``node.meta`` of a backward's placeholder it says that kernels save it with room between its rows."""


@dataclass(frozen=True)
class NodeProvenance:
    """Where an fx node came from. ``nodes`` are session-wide ids of nodes of the stage before (empty for the traced graph itself)."""

    nodes: tuple[str, ...] = ()
    span: Span | None = None
    stack: tuple[Span, ...] = ()
    module: str = ""
    note: str = ""


NO_PROVENANCE = NodeProvenance()


def set_provenance(node: torch.fx.Node, origin: NodeProvenance) -> None:
    """Attach an origin to a node."""
    node.meta["custom"] = {**node.meta.get("custom", {}), PROVENANCE_KEY: origin}


def provenance_of(node: torch.fx.Node) -> NodeProvenance:
    """The origin of a node, ``NO_PROVENANCE`` if it has none."""
    found = node.meta.get("custom", {}).get(PROVENANCE_KEY)
    return found if isinstance(found, NodeProvenance) else NO_PROVENANCE


def is_backward_node(node: torch.fx.Node) -> bool:
    """Whether a node of a joint graph was traced while autograd ran."""
    return bool(node.meta.get("custom", {}).get(BACKWARD_KEY))


def checkpoint_of(node: torch.fx.Node) -> int | None:
    """The activation checkpoint that a node stands in, whose values the user asked to be computed again rather than kept; None outside."""
    found = node.meta.get("custom", {}).get(CHECKPOINT_KEY)
    return found if isinstance(found, int) else None


def policy_of(node: torch.fx.Node) -> Any:
    """The policy of the checkpoint that a node stands in; None where all of it is computed again."""
    return node.meta.get("custom", {}).get(CHECKPOINT_POLICY_KEY)


def node_id(stage: str, compilation: str, node: torch.fx.Node) -> str:
    """The session-wide id of a node: ``fx:0/0:add_1``."""
    return f"{stage}:{compilation}:{node.name}"
