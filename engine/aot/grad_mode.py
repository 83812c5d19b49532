"""Grad mode and inference mode: in which mode nodes run, and if a graph needs autograd."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from typing import Any

import torch
import torch.fx

from engine.aot.layout_mutation import mutates_layout
from engine.aot.node_properties import example_tensors, may_mutate, traced_tensors, written_tensors
from engine.aot.storage_geometry import storage_id
from engine.graph.copy_graph import without_nodes
from engine.ir.graph_callable import Run, graph_callable_of
from engine.ir.node_values import example_tensor
from engine.ir.traced_frame import GraphInput
from engine.torch_private.autograd import set_grad_enabled

GRAD_MODE_CALLS = (set_grad_enabled, torch.set_grad_enabled)
"""Calls that set the grad mode inside a graph."""


def needs_autograd(graph: torch.fx.GraphModule, inputs: Sequence[GraphInput]) -> bool:
    """Return True if this call must run under autograd.

    True if a node creates a tensor with ``requires_grad=True``, or if grad mode is on and an input or an intermediate
    requires grad.
    """
    if any(True for n in graph.graph.nodes if n.kwargs.get("requires_grad") is True):
        return True
    switched_on = any(True for n in graph.graph.nodes if n.target in GRAD_MODE_CALLS and n.args[:1] != (False,))
    # Without grad mode no intermediate requires grad, even if the fake tensor of a view says so.
    if not torch.is_grad_enabled() and not switched_on:
        return False
    return any(i.requires_grad for i in inputs) or any(True for t in traced_tensors(graph) if t.requires_grad)


def nodes_with_grad_mode(graph: torch.fx.GraphModule, *, is_on: bool) -> Iterator[tuple[torch.fx.Node, bool]]:
    """Yield each node except grad mode calls, with the grad mode at that node.

    ``is_on`` is the grad mode where the graph starts.
    """
    for node in graph.graph.nodes:
        if node.target in GRAD_MODE_CALLS:
            is_on = node.args[:1] != (False,)
        else:
            yield node, is_on


def inputs_with_layout_mutated_in_grad_mode(graph: torch.fx.GraphModule, *, is_on: bool) -> set[int]:
    """Return the positions of inputs whose layout changes in place in grad mode."""
    changed = [
        example_tensor(node.args[0])
        for node, on in nodes_with_grad_mode(graph, is_on=is_on)
        if on and mutates_layout(node)
    ]
    inputs = [n.meta.get("example_value") for n in graph.graph.nodes if n.op == "placeholder"] if changed else []
    return {k for k, graph_input in enumerate(inputs) if any(graph_input is c for c in changed)}


def inputs_read_after_last_write(graph: torch.fx.GraphModule, *, is_on: bool) -> frozenset[int]:
    """Return the positions of inputs whose ``grad_fn`` is read after the last write to them."""
    input_numbers = {n: k for k, n in enumerate(n for n in graph.graph.nodes if n.op == "placeholder")}
    storages: dict[int, int] = {}
    for node, on in nodes_with_grad_mode(graph, is_on=is_on):
        if may_mutate(node):
            touched = {storage_id(t) for a in node.all_input_nodes for t in example_tensors(a)}
            storages = {k: storage for k, storage in storages.items() if storage not in touched}
        elif on and any(t.requires_grad for t in example_tensors(node)):
            read = (a for a in node.all_input_nodes if a in input_numbers)
            storages |= {input_numbers[a]: storage_id(t) for a in read for t in example_tensors(a)}
    return frozenset(storages)


Mode = Callable[[], AbstractContextManager[Any]]
"""Makes a context in which autograd records nothing."""


def strip_enclosing_mode(
    graph: torch.fx.GraphModule, inputs: Sequence[GraphInput], *, trains: bool
) -> tuple[torch.fx.GraphModule, Mode] | None:
    """Return the graph without the mode that it computes in, and that mode.

    None if there is no such mode. ``trains``: the graph needs autograd.
    """
    if (inside := strip_inference_mode(graph, inputs)) is not None:
        return inside, torch.inference_mode
    if trains and (inside := strip_no_grad(graph)) is not None:
        return inside, torch.no_grad
    return None


def strip_no_grad(graph: torch.fx.GraphModule) -> torch.fx.GraphModule | None:
    """Return the graph without its grad mode calls; None if it computes in grad mode.

    The step of an optimizer is a graph that does not. Also None if a node may make a tensor that requires grad all the same.
    """
    nodes = [(n, on) for n, on in nodes_with_grad_mode(graph, is_on=True) if n.op not in ("placeholder", "output")]
    if not nodes or any(on or _may_require_grad(n) for n, on in nodes) or any(True for _ in graph.children()):
        return None
    return without_nodes(graph, {n for n in graph.graph.nodes if n.target in GRAD_MODE_CALLS})


def _may_require_grad(node: torch.fx.Node) -> bool:
    return bool(node.kwargs.get("requires_grad")) or node.target in ("requires_grad_", torch.autograd.grad)


def strip_inference_mode(graph: torch.fx.GraphModule, inputs: Sequence[GraphInput]) -> torch.fx.GraphModule | None:
    """Return the graph without its enclosing inference mode region; None if there is none.

    Functions decorated with ``torch.inference_mode`` produce such graphs; the mode is entered around the call. Also None
    if views of inputs or writes to inputs are not fully tracked: in inference mode, some operators over fake tensors do
    not track them, as over real tensors.
    """
    calls = [n for n in graph.graph.nodes if n.op not in ("placeholder", "output")]
    if (
        len(calls) < 3
        or not _is_inference_mode_call(calls[0], "enter")
        or not _is_inference_mode_call(calls[-1], "exit")
    ):
        return None
    if (
        calls[-1].args != (calls[0],)
        or len(calls[0].users) != 1
        or graph_callable_of(calls[0]).context_args.get("mode") is not True
    ):
        return None
    if any(_is_inference_mode_call(n, "enter") or _is_inference_mode_call(n, "exit") for n in calls[1:-1]):
        return None
    if not _tracks_all_views_and_writes(graph.graph, inputs):
        return None
    return without_nodes(graph, {calls[0], calls[-1]})


def _tracks_all_views_and_writes(graph: torch.fx.Graph, inputs: Sequence[GraphInput]) -> bool:
    """Return True if all aliases of inputs are known views and all writes were counted."""
    fakes = [i.fake for i in inputs if i.is_tensor]
    if any(f.is_inference() for f in fakes):
        return False
    input_storages = {storage_id(f) for f in fakes}
    values = [v for n in graph.nodes if (v := example_tensor(n)) is not None]
    views = [v for v in values if storage_id(v) in input_storages and all(v is not f for f in fakes)]
    if not all(v._is_view() for v in views):
        return False
    written = [{storage_id(v) for v in written_tensors(n)} & input_storages for n in graph.nodes if may_mutate(n)]
    return all(
        i.fake._version - i.initial_version == sum(storage_id(i.fake) in w for w in written)
        for i in inputs
        if i.is_tensor
    )


def _is_inference_mode_call(node: torch.fx.Node, method: str) -> bool:
    return graph_callable_of(node).__name__ == f"{method}_inference_mode"


def run_in_mode(run: Run, mode: Mode) -> Run:
    """Return ``run`` with a mode entered around the call."""

    def call(*inputs: Any) -> Any:
        with mode():
            return run(*inputs)

    return call
