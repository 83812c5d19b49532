"""Graphs all of which run in inference mode, as those of functions decorated with it do: the mode is entered around them, not inside."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.fx

from engine.ir.frame import GraphInput
from engine.ir.in_graph import InGraph

Run = Callable[..., Any]


def without_inference_mode(graph: torch.fx.GraphModule, inputs: Sequence[GraphInput]) -> torch.fx.GraphModule | None:
    """The graph without the switches of inference mode that enclose all of it; None where they do not.

    None too where an input is an inference tensor: those keep no account of views and writes.
    """
    calls = [n for n in graph.graph.nodes if n.op not in ("placeholder", "output")]
    if len(calls) < 3 or not _is_switch(calls[0], "enter") or not _is_switch(calls[-1], "leave"):
        return None
    if calls[-1].args != (calls[0],) or len(calls[0].users) != 1 or _entered(calls[0]).get("mode") is not True:
        return None
    if any(_is_switch(n, "enter") or _is_switch(n, "leave") for n in calls[1:-1]):
        return None
    if any(isinstance(i.fake, torch.Tensor) and i.fake.is_inference() for i in inputs):
        return None
    copied = torch.fx.Graph()
    known: dict[torch.fx.Node, torch.fx.Node] = {}
    for node in graph.graph.nodes:
        if node is not calls[0] and node is not calls[-1]:
            known[node] = copied.node_copy(node, known.__getitem__)
    return torch.fx.GraphModule(graph, copied)


def _is_switch(node: torch.fx.Node, word: str) -> bool:
    return isinstance(node.target, InGraph) and node.target.__name__ == f"{word}_inference_mode"


def _entered(node: torch.fx.Node) -> Any:
    assert isinstance(node.target, InGraph)
    return node.target.arguments


def in_inference_mode(run: Run) -> Run:
    """``run`` with the mode on."""

    def call(*inputs: Any) -> Any:
        with torch.inference_mode():
            return run(*inputs)

    return call
