"""Arguments and result of the eligibility checks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from operator import attrgetter

import torch
import torch.fx

from engine.aot.node_properties import may_mutate, traced_tensors
from engine.ir.fallback import Fallback
from engine.ir.introspection.operator_facts import OperatorFacts, facts_of_node
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

    @cached_property
    def writes(self) -> bool:
        """True if a node of the graph may mutate an argument."""
        return any(map(may_mutate, self.graph.graph.nodes))

    @cached_property
    def _facts(self) -> list[OperatorFacts]:
        return [facts_of_node(node) for node in self.graph.graph.nodes]

    @property
    def addresses_storage(self) -> bool:
        """True if a node of the graph addresses a storage beyond its operand."""
        return any(map(attrgetter("addresses_storage"), self._facts))

    @property
    def hides_aliases(self) -> bool:
        """True if a result may share memory with an argument without its schema saying so."""
        return any(map(attrgetter("hides_alias"), self._facts))

    @property
    def tracks_gradients(self) -> bool:
        """True if autograd tracks an input or an intermediate tensor."""
        inputs = [i.fake for i in self.inputs if i.is_tensor]
        return torch.is_grad_enabled() and any(map(attrgetter("requires_grad"), (*inputs, *traced_tensors(self.graph))))

    @property
    def has_inference_inputs(self) -> bool:
        """True if an input is an inference tensor outside of inference mode."""
        return not torch.is_inference_mode_enabled() and any(i.is_inference for i in self.inputs)


Check = Callable[[CheckedCall], Fallback | None]
"""Returns why a call must run as traced; None if the check finds no reason."""
