"""Takes what tells inputs to require gradients out of a graph, where that can as well happen around it: other compilers cannot carry it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
import torch.fx
from torch._subclasses.fake_tensor import FakeTensor

from engine.ir.traced_frame import GraphInput

Run = Callable[..., Any]
RequiresGradCalls = tuple[tuple[int, bool], ...]
"""Positions of inputs, each with whether it is told to require gradients, in order."""


@dataclass(frozen=True)
class LiftedRequiresGrad:
    """A graph without its switches of inputs, and those that are thrown before it and after it."""

    graph: torch.fx.GraphModule
    before: RequiresGradCalls
    after: RequiresGradCalls
    before_all_operations: int
    """How many of those before it stood ahead of all that may raise."""

    @contextmanager
    def inputs_as_in_graph(self, inputs: Sequence[GraphInput]) -> Iterator[None]:
        """The inputs as the graph finds them, for as long as it is compiled; then those of the call are as before, and fakes as inside."""
        concerned = [inputs[n] for n in dict.fromkeys(n for n, _ in (*self.before, *self.after))]
        was = [i.example_value.requires_grad for i in concerned]
        try:
            _apply(self.before, [i.example_value for i in inputs])
            for i in concerned:
                i.fake.requires_grad_(i.example_value.requires_grad)
            yield
        finally:
            for i, wanted in zip(concerned, was, strict=True):
                i.example_value.requires_grad_(wanted)

    def wrap(self, run: Run) -> Run:
        """``run`` of the graph without switches, with them. Where it raises, only those ahead of all operations have been thrown."""
        before, after, ahead = self.before, self.after, self.before_all_operations

        def call(*inputs: Any) -> Any:
            _apply(before[:ahead], inputs)
            was = [(inputs[n], inputs[n].requires_grad) for n, _ in before[ahead:]]
            _apply(before[ahead:], inputs)
            try:
                made = run(*inputs)
            except BaseException:
                for tensor, wanted in reversed(was):
                    tensor.requires_grad_(wanted)
                raise
            _apply(after, inputs)
            return made

        return call


def _apply(switches: RequiresGradCalls, inputs: Sequence[Any]) -> None:
    for n, wanted in switches:
        inputs[n].requires_grad_(wanted)


def requires_grad_calls(graph: torch.fx.Graph) -> dict[torch.fx.Node, torch.fx.Node]:
    """Nodes that tell an input to require gradients, or not to, with that input."""
    found: dict[torch.fx.Node, torch.fx.Node] = {}
    for node in graph.nodes:
        if node.op == "call_method" and node.target == "requires_grad_":
            source = node.args[0]
            if isinstance(source, torch.fx.Node) and source.op == "placeholder":
                found[node] = source
    return found


def _nodes_sharing_storage(graph: torch.fx.Graph, source: torch.fx.Node) -> list[torch.fx.Node]:
    """An input and its views: what sees its memory."""
    storage = _storage(source)
    return [n for n in graph.nodes if n is source or (storage is not None and _storage(n) == storage)]


def _storage(node: torch.fx.Node) -> int | None:
    value = node.meta.get("example_value")
    return value.untyped_storage()._cdata if type(value) is FakeTensor else None


def lift_requires_grad(module: torch.fx.GraphModule) -> LiftedRequiresGrad | None:
    """The graph without switches of inputs; None where there are none, or one stands between two uses of its input, or of views of it."""
    switches = requires_grad_calls(module.graph)
    if not switches:
        return None
    order = {node: n for n, node in enumerate(module.graph.nodes)}
    places = {node: n for n, node in enumerate(n for n in module.graph.nodes if n.op == "placeholder")}
    before: list[tuple[int, bool]] = []
    after: list[tuple[int, bool]] = []
    for node, source in switches.items():
        uses = [
            order[u] for seen in _nodes_sharing_storage(module.graph, source) for u in seen.users if u not in switches
        ]
        if node.users or (uses and min(uses) < order[node] < max(uses)):
            return None
        is_last = bool(uses) and max(uses) < order[node]
        (after if is_last else before).append((places[source], bool((*node.args[1:], *node.kwargs.values(), True)[0])))
    copied = torch.fx.Graph()
    known: dict[torch.fx.Node, torch.fx.Node] = {}
    for node in module.graph.nodes:
        if node not in switches:
            known[node] = copied.node_copy(node, known.__getitem__)
    calls = [n for n in module.graph.nodes if n.op not in ("placeholder", "get_attr")]
    ahead = next((n for n, node in enumerate(calls) if node not in switches), 0)
    return LiftedRequiresGrad(torch.fx.GraphModule(module, copied), tuple(before), tuple(after), ahead)
