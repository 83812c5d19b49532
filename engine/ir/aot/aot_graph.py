"""What AOT hands to lowering: one functional ATen graph."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch.fx


@dataclass(frozen=True)
class AotGraph:
    """A functional graph of ATen operators, its fake inputs in placeholder order, and the id of its compilation ("0/0").

    ``stage`` is "aten", or "forward" and "backward" of a training call.
    """

    module: torch.fx.GraphModule
    inputs: tuple[Any, ...]
    compilation_id: str
    stage: str = "aten"
    is_boxed: bool = False
    """It is called with one list of inputs, which it empties, so that each input can go as soon as it was read for the last time."""
    num_user_outputs: int | None = None
    """How many outputs the caller sees; the rest is saved for the backward. None: all."""
    saved_placeholders: tuple[torch.fx.Node, ...] = ()
    """The backward's placeholders for that rest. Rows of what is saved may lie apart, if the placeholder's value then says so."""

    @property
    def node_id_prefix(self) -> str:
        """What ids of its nodes begin with: "backward", or "aten" for whatever runs when the user's code is called."""
        return node_id_prefix(self.stage)


def node_id_prefix(stage: str) -> str:
    """What ids of the nodes of a graph of this stage begin with."""
    return "aten" if stage == "forward" else stage
