"""Arguments and result of the eligibility checks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch.fx

from engine.ir.fallback import Fallback
from engine.ir.traced_frame import GraphInput


@dataclass(frozen=True)
class CheckedCall:
    """A traced graph with its inputs, before it is functionalized.

    ``graph`` and ``inputs`` are those after ``pre_compile`` of the wrappers; ``traced`` is the graph as traced.
    """

    graph: torch.fx.GraphModule
    inputs: Sequence[GraphInput]
    traced: torch.fx.GraphModule
    trains: bool
    """True if the call needs a backward."""
    changes_objects: bool = False
    """True if the traced frame mutates Python objects."""
    autograd_use: str = ""
    """Name of the autograd call in code that runs after the graph; empty if there is none."""


Check = Callable[[CheckedCall], Fallback | None]
"""Returns why a call must run as traced; None if the check finds no reason."""
