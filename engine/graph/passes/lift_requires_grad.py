"""Lifts ``requires_grad_`` calls on inputs out of a graph, if they can run around it.

Other compilers do not support these calls in a graph.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
import torch.fx

from engine.graph.copy_graph import without_nodes
from engine.ir.graph_callable import Run
from engine.ir.node_values import tensors_in
from engine.ir.traced_frame import GraphInput
from engine.torch_private.fake_tensors import FakeTensor

RequiresGradCalls = tuple[tuple[int, bool], ...]
"""Positions of inputs, each with the ``requires_grad`` value to set, in order."""


@dataclass(frozen=True)
class LiftedRequiresGrad:
    """A graph without ``requires_grad_`` calls on inputs, and the calls before and after it."""

    graph: torch.fx.GraphModule
    before: RequiresGradCalls
    after: RequiresGradCalls
    before_all_operations: int
    """Number of calls in ``before`` that precede everything that may raise."""

    @contextmanager
    def inputs_as_in_graph(self, inputs: Sequence[GraphInput]) -> Iterator[None]:
        """Give the inputs ``requires_grad`` as in the graph while it is compiled.

        Afterwards the real inputs are restored. The fake inputs remain as in the graph.
        """
        concerned = [inputs[n] for n in dict.fromkeys(n for n, _ in (*self.before, *self.after))]
        was = [i.example_value.requires_grad for i in concerned]
        try:
            _apply(self.before, [i.example_value for i in inputs])
            for i in concerned:
                i.fake.requires_grad_(i.example_value.requires_grad)
            yield
        finally:
            for i, requires_grad in zip(concerned, was, strict=True):
                i.example_value.requires_grad_(requires_grad)

    def wrap(self, run: Run, as_traced: Run | None = None) -> Run:
        """Wrap ``run`` of the graph with the lifted calls.

        If it raises before it mutates an input, ``as_traced`` runs: the graph with its own calls, which leaves the
        effects of those before the error. Without it, only calls that precede all operations have an effect.
        """
        before, after, ahead = self.before, self.after, self.before_all_operations

        def call(*inputs: Any) -> Any:
            _apply(before[:ahead], inputs)
            was = [(n, inputs[n].requires_grad) for n, _ in before[ahead:]]
            versions = _versions(inputs)
            _apply(before[ahead:], inputs)
            try:
                results = run(*inputs)
            except Exception:
                _apply(reversed(was), inputs)
                if as_traced is None or versions != _versions(inputs):
                    raise
            except BaseException:
                _apply(reversed(was), inputs)
                raise
            else:
                _apply(after, inputs)
                return results
            return as_traced(*inputs)

        return call


def _versions(inputs: tuple[Any, ...]) -> list[Any]:
    """Return the versions of the tensors.

    Inference tensors have none, so a mutation goes unnoticed: their entry never equals another.
    """
    return [object() if t.is_inference() else t._version for t in tensors_in(inputs)]


def _apply(switches: Iterable[tuple[int, bool]], inputs: Sequence[Any]) -> None:
    for n, requires_grad in switches:
        inputs[n].requires_grad_(requires_grad)


def requires_grad_calls(graph: torch.fx.Graph) -> dict[torch.fx.Node, torch.fx.Node]:
    """Return the nodes that call ``requires_grad_`` on an input, each with that input."""
    calls: dict[torch.fx.Node, torch.fx.Node] = {}
    for node in graph.nodes:
        if node.op == "call_method" and node.target == "requires_grad_":
            source = node.args[0]
            if isinstance(source, torch.fx.Node) and source.op == "placeholder":
                calls[node] = source
    return calls


def _nodes_sharing_storage(graph: torch.fx.Graph, source: torch.fx.Node) -> list[torch.fx.Node]:
    storage = _storage(source)
    return [n for n in graph.nodes if n is source or (storage is not None and _storage(n) == storage)]


def _storage(node: torch.fx.Node) -> int | None:
    value = node.meta.get("example_value")
    return value.untyped_storage()._cdata if type(value) is FakeTensor else None


def lift_requires_grad(module: torch.fx.GraphModule) -> LiftedRequiresGrad | None:
    """Lift ``requires_grad_`` calls on inputs out of the graph; return None if it cannot.

    None if there are no such calls, or if one is between two uses of its input or of views of it.
    """
    switches = requires_grad_calls(module.graph)
    if not switches:
        return None
    order = {node: n for n, node in enumerate(module.graph.nodes)}
    input_numbers = {node: n for n, node in enumerate(n for n in module.graph.nodes if n.op == "placeholder")}
    before: list[tuple[int, bool]] = []
    after: list[tuple[int, bool]] = []
    for node, source in switches.items():
        uses = [
            order[u]
            for sharing in _nodes_sharing_storage(module.graph, source)
            for u in sharing.users
            if u not in switches
        ]
        if node.users or (uses and min(uses) < order[node] < max(uses)):
            return None
        is_last = bool(uses) and max(uses) < order[node]
        (after if is_last else before).append(
            (input_numbers[source], bool((*node.args[1:], *node.kwargs.values(), True)[0]))
        )
    calls = [n for n in module.graph.nodes if n.op not in ("placeholder", "get_attr")]
    ahead = next((n for n, node in enumerate(calls) if node not in switches), 0)
    return LiftedRequiresGrad(without_nodes(module, switches), tuple(before), tuple(after), ahead)
