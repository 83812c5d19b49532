"""How provenance travels in fx graphs: one value in ``node.meta["custom"]``, kept by make_fx and by every pass of ours."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch.fx

from engine.records.bytecode import Span

KEY = "engine_origin"
"""Where in ``node.meta["custom"]`` an ``OriginOf`` lives. torch keeps "custom" through make_fx on forward nodes, and drops other keys."""


CHECKPOINT = "engine_checkpoint"
"""Where in ``node.meta["custom"]`` the number of the activation checkpoint is that a node was traced inside of."""


POLICY = "engine_policy"
"""Where in ``node.meta["custom"]`` the policy of the node's checkpoint is, which says of each ATen operator whether its result is saved."""


BACKWARD = "engine_backward"
"""In ``node.meta["custom"]`` of nodes that were traced while autograd ran."""


ROWS_APART = "engine_rows_apart"
"""Where in ``node.meta`` of a backward's placeholder it says that kernels save it with room between its rows."""


@dataclass(frozen=True)
class NodeOrigin:
    """Where an fx node came from. ``nodes`` are session-wide ids of nodes of the stage before (empty for the traced graph itself)."""

    nodes: tuple[str, ...] = ()
    span: Span | None = None
    stack: tuple[Span, ...] = ()
    module: str = ""
    note: str = ""


NOWHERE = NodeOrigin()


def set_origin(node: torch.fx.Node, origin: NodeOrigin) -> None:
    """Attach an origin to a node."""
    node.meta["custom"] = {**node.meta.get("custom", {}), KEY: origin}


def origin_of(node: torch.fx.Node) -> NodeOrigin:
    """The origin of a node, ``NOWHERE`` if it has none."""
    found = node.meta.get("custom", {}).get(KEY)
    return found if isinstance(found, NodeOrigin) else NOWHERE


def is_backward(node: torch.fx.Node) -> bool:
    """Whether a node of a joint graph was traced while autograd ran."""
    return bool(node.meta.get("custom", {}).get(BACKWARD))


def checkpoint_of(node: torch.fx.Node) -> int | None:
    """The activation checkpoint that a node stands in, whose values the user asked to be computed again rather than kept; None outside."""
    found = node.meta.get("custom", {}).get(CHECKPOINT)
    return found if isinstance(found, int) else None


def policy_of(node: torch.fx.Node) -> Any:
    """The policy of the checkpoint that a node stands in; None where all of it is computed again."""
    return node.meta.get("custom", {}).get(POLICY)


def node_id(stage: str, compilation: str, node: torch.fx.Node) -> str:
    """The session-wide id of a node: ``fx:0/0:add_1``."""
    return f"{stage}:{compilation}:{node.name}"
