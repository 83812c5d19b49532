"""The functional ATen graph that AOT passes to lowering."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch.fx

from engine.ir.pass_set import PassSet

KERNEL_GAIN_ATTR = "engine_kernel_gain"
"""Attribute of an executor: estimated seconds that kernels gain over eager's operators."""


@dataclass(frozen=True)
class AotGraph:
    """A functional ATen graph with its fake inputs in placeholder order.

    ``compilation_id`` is for example "0/0". ``stage`` is "aten", or "forward" or "backward" of a training call.
    """

    module: torch.fx.GraphModule
    inputs: tuple[Any, ...]
    compilation_id: str
    stage: str = "aten"
    is_boxed: bool = False
    """True if the graph takes one list of inputs and empties it (boxed call).

    Each input is then freed after its last use.
    """
    num_user_outputs: int | None = None
    """Number of outputs that the caller sees; the rest is saved for backward. None: all."""
    saved_placeholders: tuple[torch.fx.Node, ...] = ()
    """The backward's placeholders for the saved outputs.

    A saved matrix may have padded rows if the placeholder's fake value has such strides.
    """

    num_saved_inputs: int | None = None
    """Number of the backward's first inputs, which the forward saved; tangents follow."""

    mutated_inputs: tuple[tuple[int, int], ...] = ()
    """Positions of outputs that are new values of inputs, and of these inputs.

    Kernels may write the new value into the input itself, and return the input.
    """

    passes: PassSet = PassSet()
    """Passes that the user registered; they run before lowering."""

    @property
    def node_id_prefix(self) -> str:
        """Prefix of its node ids: "backward", or "aten" for graphs that run in the user's call."""
        return node_id_prefix(self.stage)


def node_id_prefix(stage: str) -> str:
    """Return the prefix of node ids in a graph of this stage."""
    return "aten" if stage == "forward" else stage
