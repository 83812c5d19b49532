"""Puts backward graphs of compiled calls into a captured graph in place of the calls of their nodes, so that all is compiled together."""

from __future__ import annotations

import operator
from collections.abc import Mapping, Sequence
from itertools import islice
from typing import Any

import torch
import torch.fx

from engine.autograd.program import CALL, FUNCTION, KIND, VALUES, named
from engine.autograd.targets import unchanged, zeros
from engine.ir.graph import origin_of, set_origin
from engine.ir.inlined import INLINED, Inlined

Values = Mapping[torch.fx.Node, Any]


def inline(module: torch.fx.GraphModule) -> tuple[torch.fx.GraphModule, tuple[str, ...]]:
    """A copy of the captured graph with what can be inlined inlined, and for each compiled call a sentence on it."""
    calls = [n for n in module.graph.nodes if isinstance(_inlined_of(n), Inlined)]
    if not calls:
        return _copied(module), ()
    graph = torch.fx.Graph()
    values: dict[torch.fx.Node, Any] = {}
    notes = []
    for node in module.graph.nodes:
        known = _inlined_of(node)
        reason = "" if known is None else _why_not(node, known)
        if known is not None:
            notes.append(
                f"the backward of a compiled call ({node.name}) {f'is called: {reason}' if reason else 'is inlined'}"
            )
        if known is not None and not reason:
            values[node] = _put(graph, node, known, values)
        elif node.target is operator.getitem and isinstance(values.get(node.args[0]), tuple):
            values[node] = made = values[node.args[0]][node.args[1]]
            if made is not None:
                made.meta[VALUES] = (*made.meta.get(VALUES, ()), *node.meta.get(VALUES, ()))
        else:
            values[node] = graph.node_copy(node, lambda n: values[n])
    graph.lint()
    return torch.fx.GraphModule(torch.nn.Module(), graph, "CapturedBackward"), tuple(notes)


def _copied(module: torch.fx.GraphModule) -> torch.fx.GraphModule:
    graph = torch.fx.Graph()
    graph.output(graph.graph_copy(module.graph, {}))
    return torch.fx.GraphModule(torch.nn.Module(), graph, "CapturedBackward")


def _inlined_of(node: torch.fx.Node) -> Inlined | None:
    found = getattr(node.meta.get(FUNCTION), INLINED, None)
    return found if isinstance(found, Inlined) else None


def _why_not(node: torch.fx.Node, known: Inlined) -> str:
    """Why a compiled call's node must be called as it is; empty when its graph can stand for it."""
    if any(u.target is not operator.getitem for u in node.users):
        return "its gradients are used together"
    return next((reason for inner in known.graph.graph.nodes if (reason := _unfit(inner))), "")


def _unfit(inner: torch.fx.Node) -> str:
    if inner.op in ("placeholder", "output") or _is_of_sizes(inner):
        return ""
    if not isinstance(inner.target, torch._ops.OpOverload) or inner.target._schema.is_mutable:
        return f"{inner.name} is no functional operator"
    if torch.Tag.nondeterministic_seeded in inner.target.tags or inner.target.namespace not in ("aten", "prims"):
        return f"{inner.name} must run where it stands"
    return ""


def _is_of_sizes(inner: torch.fx.Node) -> bool:
    """Whether it computes with sizes, or takes something out of a list."""
    module, name = getattr(inner.target, "__module__", ""), getattr(inner.target, "__name__", "")
    return module in ("_operator", "math") or (module == "torch" and name.startswith("sym_"))


def _put(graph: torch.fx.Graph, node: torch.fx.Node, known: Inlined, values: Values) -> tuple[Any, ...]:
    """The nodes of a compiled call's backward; the gradients of the call's inputs."""
    args: Any = torch.fx.node.map_arg(node.args, lambda n: values[n])
    context, saved, _, grads, *check = args

    def put(target: Any, args: tuple[Any, ...], name: str, kind: str) -> torch.fx.Node:
        made = graph.create_node("call_function", target, args, {}, name=name)
        made.meta[KIND] = kind
        return _marked(made, node)

    if check:
        put(named("unchanged", unchanged), (*check, tuple(s for s in saved if s is not None)), "unchanged", "check")
    there = tuple(n for n, place in enumerate(known.differentiable) if grads[place] is not None)
    opened = put(named("open", known.open), (context, there), "opened", "open")
    count = known.numbers + sum(2 * rank for rank in known.layouts if isinstance(rank, int))
    numbers = [put(operator.getitem, (opened, n), "number", "item") for n in range(count)]
    given: list[Any] = [*saved, *numbers[: known.numbers]]
    standing, wants_zeros = known.standing_for(tuple(grads[n] is not None for n in known.differentiable))
    tangents = [n for n in known.graph.graph.nodes if n.op == "placeholder"][known.tensors + known.numbers :]
    layouts = _layouts(known, numbers[known.numbers :])
    for place, (size, stride), tangent in zip(known.differentiable, layouts, tangents, strict=True):
        if grads[place] is not None:
            given.append(put(named("laid_out", known.laid_out), (grads[place], size, stride), "tangent", "add"))
        elif wants_zeros:
            like = tangent.meta["val"]
            given.append(put(named("zeros", zeros), (size, like.dtype, like.device), "tangent", "zeros"))
    inner: dict[torch.fx.Node, Any] = {}
    returned: Any = ()
    for old in standing.graph.nodes:
        if old.op == "placeholder":
            inner[old] = given[len(inner)]
        elif old.op == "output":
            returned = torch.fx.node.map_arg(old.args[0], lambda n: inner[n])
        else:
            inner[old] = made = _marked(graph.node_copy(old, lambda n: inner[n]), node)
            made.meta[KIND] = "item" if old.target is operator.getitem else "function"
    return tuple(None if n is None else returned[n] for n in known.gradients)


def _layouts(known: Inlined, numbers: Sequence[Any]) -> list[tuple[Sequence[Any], Sequence[Any]]]:
    """Size and stride of each tangent; nodes of the graph where they are symbols."""
    rest = iter(numbers)
    return [
        (tuple(islice(rest, layout)), tuple(islice(rest, layout))) if isinstance(layout, int) else layout
        for layout in known.layouts
    ]


def _marked(made: torch.fx.Node, node: torch.fx.Node) -> torch.fx.Node:
    made.meta = {KIND: made.meta.get(KIND), CALL: node.meta.get(CALL)}
    set_origin(made, origin_of(node))
    return made
