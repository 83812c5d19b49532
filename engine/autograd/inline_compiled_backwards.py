"""Inlines backward graphs of compiled calls into a captured graph.

The backend can then compile all of it together.
"""

from __future__ import annotations

import operator
from collections.abc import Mapping, Sequence
from itertools import islice
from typing import Any

import torch
import torch.fx

from engine.autograd.build_captured_graph import AUTOGRAD_FUNCTION, CAPTURED_VALUES, NODE_CALL, STEP_KIND, named_target
from engine.autograd.graph_ops import check_saved_versions, zeros
from engine.ir.aot.inlinable_backward import INLINABLE_ATTR, InlinableBackward
from engine.ir.introspection.operator_facts import facts_of_node
from engine.ir.node_metadata import provenance_of, set_provenance
from engine.ir.node_values import called_overload

NodeValues = Mapping[torch.fx.Node, Any]


def inline_compiled_backwards(module: torch.fx.GraphModule) -> tuple[torch.fx.GraphModule, tuple[str, ...]]:
    """Return a copy of the graph with compiled backwards inlined, and a note on each."""
    calls = [n for n in module.graph.nodes if _inlinable_backward_of(n) is not None]
    if not calls:
        return _copy_graph(module), ()
    graph = torch.fx.Graph()
    values: dict[torch.fx.Node, Any] = {}
    notes = []
    for node in module.graph.nodes:
        inlinable = _inlinable_backward_of(node)
        reason = "" if inlinable is None else _why_not_inlinable(node, inlinable)
        if inlinable is not None:
            notes.append(
                f"the backward of a compiled call ({node.name}) {f'is not inlined: {reason}' if reason else 'is inlined'}"
            )
        if inlinable is not None and not reason:
            values[node] = _insert_backward_graph(graph, node, inlinable, values)
        elif node.target is operator.getitem and isinstance(values.get(node.args[0]), tuple):
            values[node] = result = values[node.args[0]][node.args[1]]
            if result is not None:
                result.meta[CAPTURED_VALUES] = (
                    *result.meta.get(CAPTURED_VALUES, ()),
                    *node.meta.get(CAPTURED_VALUES, ()),
                )
        else:
            values[node] = graph.node_copy(node, lambda n: values[n])
    graph.lint()
    return torch.fx.GraphModule(torch.nn.Module(), graph, "CapturedBackward"), tuple(notes)


def _copy_graph(module: torch.fx.GraphModule) -> torch.fx.GraphModule:
    graph = torch.fx.Graph()
    graph.output(graph.graph_copy(module.graph, {}))
    return torch.fx.GraphModule(torch.nn.Module(), graph, "CapturedBackward")


def _inlinable_backward_of(node: torch.fx.Node) -> InlinableBackward | None:
    inlinable = getattr(node.meta.get(AUTOGRAD_FUNCTION), INLINABLE_ATTR, None)
    return inlinable if isinstance(inlinable, InlinableBackward) else None


def _why_not_inlinable(node: torch.fx.Node, inlinable: InlinableBackward) -> str:
    """Return why a compiled call cannot be inlined; empty if it can."""
    if any(u.target is not operator.getitem for u in node.users):
        return "its gradients are used as one tuple"
    return next((reason for inner in inlinable.graph.graph.nodes if (reason := _why_node_not_inlinable(inner))), "")


def _why_node_not_inlinable(inner: torch.fx.Node) -> str:
    if inner.op in ("placeholder", "output") or _is_size_computation(inner):
        return ""
    called = called_overload(inner.target)
    if called is None or facts_of_node(inner).writes:
        return f"{inner.name} is not a functional operator"
    if facts_of_node(inner).draws_random or called.namespace not in ("aten", "prims"):
        return f"{inner.name} generates random numbers or is a custom operator, so its position is fixed"
    return ""


_SYMBOLIC_FUNCTIONS = frozenset(getattr(torch, f"sym_{name}") for name in "float int ite max min not sqrt sum".split())
"""Functions of torch that compute numbers from sizes."""


def _is_size_computation(inner: torch.fx.Node) -> bool:
    """Return True if the node computes sizes or takes an item of a list."""
    return getattr(inner.target, "__module__", "") in ("_operator", "math") or inner.target in _SYMBOLIC_FUNCTIONS


def _insert_backward_graph(
    graph: torch.fx.Graph, node: torch.fx.Node, inlinable: InlinableBackward, values: NodeValues
) -> tuple[Any, ...]:
    """Insert the backward graph of a compiled call; return the gradients of the call's inputs."""
    args: Any = torch.fx.node.map_arg(node.args, lambda n: values[n])
    context, saved, _, grads, *check = args

    def put(target: Any, args: tuple[Any, ...], name: str, kind: str) -> torch.fx.Node:
        new_node = graph.create_node("call_function", target, args, {}, name=name)
        new_node.meta[STEP_KIND] = kind
        return _copy_provenance(new_node, node)

    if check:
        put(
            named_target("unchanged", check_saved_versions),
            (*check, tuple(s for s in saved if s is not None)),
            "unchanged",
            "check",
        )
    defined = tuple(
        n for n, result_number in enumerate(inlinable.differentiable_results) if grads[result_number] is not None
    )
    opened = put(named_target("open", inlinable.take_saved_scalars), (context, defined), "opened", "open")
    count = inlinable.num_saved_scalars + sum(2 * rank for rank in inlinable.tangent_layouts if isinstance(rank, int))
    numbers = [put(operator.getitem, (opened, n), "number", "item") for n in range(count)]
    inputs: list[Any] = [*saved, *numbers[: inlinable.num_saved_scalars]]
    standing, wants_zeros = inlinable.specialize_tangents(
        tuple(grads[n] is not None for n in inlinable.differentiable_results)
    )
    tangents = [n for n in inlinable.graph.graph.nodes if n.op == "placeholder"][
        inlinable.num_saved_tensors + inlinable.num_saved_scalars :
    ]
    layouts = _tangent_layouts(inlinable, numbers[inlinable.num_saved_scalars :])
    for result_number, (size, stride), tangent in zip(inlinable.differentiable_results, layouts, tangents, strict=True):
        if grads[result_number] is not None:
            inputs.append(
                put(
                    named_target("laid_out", inlinable.to_tangent_layout),
                    (grads[result_number], size, stride),
                    "tangent",
                    "add",
                )
            )
        elif wants_zeros:
            like = tangent.meta["val"]
            inputs.append(put(named_target("zeros", zeros), (size, like.dtype, like.device), "tangent", "zeros"))
    inner: dict[torch.fx.Node, Any] = {}
    returned: Any = ()
    for old in standing.graph.nodes:
        if old.op == "placeholder":
            inner[old] = inputs[len(inner)]
        elif old.op == "output":
            returned = torch.fx.node.map_arg(old.args[0], lambda n: inner[n])
        else:
            inner[old] = new_node = _copy_provenance(graph.node_copy(old, lambda n: inner[n]), node)
            new_node.meta[STEP_KIND] = "item" if old.target is operator.getitem else "function"
    return tuple(None if n is None else returned[n] for n in inlinable.grad_of_input)


def _tangent_layouts(inlinable: InlinableBackward, numbers: Sequence[Any]) -> list[tuple[Sequence[Any], Sequence[Any]]]:
    """Return the size and stride of each tangent; graph nodes where they are symbolic."""
    remaining = iter(numbers)
    return [
        (tuple(islice(remaining, layout)), tuple(islice(remaining, layout))) if isinstance(layout, int) else layout
        for layout in inlinable.tangent_layouts
    ]


def _copy_provenance(new_node: torch.fx.Node, node: torch.fx.Node) -> torch.fx.Node:
    new_node.meta = {STEP_KIND: new_node.meta.get(STEP_KIND), NODE_CALL: node.meta.get(NODE_CALL)}
    set_provenance(new_node, provenance_of(node))
    return new_node
