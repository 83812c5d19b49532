"""Engine keys in ``node.meta``: provenance, checkpoint, policy, backward, padded rows.

Provenance is one value in ``node.meta["custom"]``, which make_fx and every pass preserve.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch.fx

from engine.records.bytecode import Span

PROVENANCE_KEY = "engine_origin"
"""Key of a ``NodeProvenance`` in ``node.meta["custom"]``.

make_fx preserves "custom" on forward nodes, and drops other keys.
"""


CHECKPOINT_KEY = "engine_checkpoint"
"""Key in ``node.meta["custom"]`` of the activation checkpoint that a node was traced in.

The value is the number of the checkpoint.
"""


CHECKPOINT_POLICY_KEY = "engine_policy"
"""Key in ``node.meta["custom"]`` of the checkpoint's policy function.

The policy decides for each ATen operator if its result is saved.
"""


BACKWARD_KEY = "engine_backward"
"""Key in ``node.meta["custom"]`` of nodes that were traced while autograd ran."""


USER_TEXT = "engine_user_text"
"""Key in ``node.meta`` of a placeholder: the user's expression for the input."""


PADDED_ROWS_KEY = "engine_rows_apart"
"""Key in ``node.meta`` of a backward placeholder whose tensor is saved with padded rows."""


@dataclass(frozen=True)
class NodeProvenance:
    """Provenance of an fx node.

    ``nodes`` are session-wide ids of nodes of the previous stage; empty for the traced graph itself.
    """

    nodes: tuple[str, ...] = ()
    span: Span | None = None
    stack: tuple[Span, ...] = ()
    module: str = ""
    note: str = ""


NO_PROVENANCE = NodeProvenance()


def set_provenance(node: torch.fx.Node, origin: NodeProvenance) -> None:
    """Attach provenance to a node under a key that FX transforms preserve."""
    node.meta["custom"] = {**node.meta.get("custom", {}), PROVENANCE_KEY: origin}


def provenance_of(node: torch.fx.Node) -> NodeProvenance:
    """Return the source line and traced node behind a node, or ``NO_PROVENANCE``."""
    return provenance_in(node.meta)


def provenance_in(meta: Mapping[str, Any]) -> NodeProvenance:
    """Return the provenance in the metadata of a node, or ``NO_PROVENANCE``."""
    provenance = meta.get("custom", {}).get(PROVENANCE_KEY)
    return provenance if isinstance(provenance, NodeProvenance) else NO_PROVENANCE


def is_backward_node(node: torch.fx.Node) -> bool:
    """Return True if a node of a joint graph was traced while autograd ran."""
    return bool(node.meta.get("custom", {}).get(BACKWARD_KEY))


def checkpoint_of(node: torch.fx.Node) -> int | None:
    """Return the number of the activation checkpoint that contains a node, or None.

    The backward recomputes values of a checkpoint instead of saving them.
    """
    checkpoint = node.meta.get("custom", {}).get(CHECKPOINT_KEY)
    return checkpoint if isinstance(checkpoint, int) else None


def policy_of(node: torch.fx.Node) -> Any:
    """Return the policy of a node's checkpoint; None if all of it is recomputed."""
    return node.meta.get("custom", {}).get(CHECKPOINT_POLICY_KEY)


def node_id(stage: str, compilation: str, node: torch.fx.Node) -> str:
    """Return the session-wide id of a node: ``fx:0/0:add_1``."""
    return f"{stage}:{compilation}:{node.name}"
