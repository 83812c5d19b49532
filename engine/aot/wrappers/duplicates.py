"""Passes a tensor that several inputs are only once, so that what is written through one of them is seen through the others."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import torch.fx

from engine.aot.wrappers.layer import Layer, weave
from engine.aot.wrappers.rewrite import rewritten
from engine.aot.wrappers.wrapper import Call, Change
from engine.ir.plan import InputPlan, OutputPlan, Plan
from engine.ir.relation_guard import SameObject
from engine.records.aot import WrapperAction

NAME = "duplicate arguments"


@dataclass(frozen=True)
class Duplicates:
    """``kept[n]`` is the first input that is the same tensor as input ``n``; ``results`` how many outputs there are."""

    kept: tuple[int, ...]
    results: int


def pre_compile(call: Call) -> Change | None:
    """Leave out every input that is the same object as an earlier one; None when there is none."""
    kept = _kept(call)
    if all(n == k for n, k in enumerate(kept)):
        return None

    def place(copy: torch.fx.Graph, n: int, node: torch.fx.Node, known: dict[torch.fx.Node, Any]) -> torch.fx.Node:
        return copy.node_copy(node) if kept[n] == n else known[placeholders[kept[n]]]

    placeholders = [n for n in call.graph.graph.nodes if n.op == "placeholder"]
    graph = rewritten(call.graph, place)
    twice = [(call.inputs[n], call.inputs[k]) for n, k in enumerate(kept) if n != k]
    why = "one tensor: what is written through one must show in the other"
    actions = tuple(WrapperAction(i.name, f"passed as {k.name}", why) for i, k in twice)
    guards = tuple(SameObject(i.origin, k.origin, same=True) for i, k in twice if i.origin != k.origin)
    returned = next(n for n in reversed(call.graph.graph.nodes) if n.op == "output").args[0]
    inputs = tuple(i for n, i in enumerate(call.inputs) if kept[n] == n)
    return Change(Call(graph, inputs), actions, Duplicates(kept, len(returned)), guards)


def _kept(call: Call) -> tuple[int, ...]:
    first: dict[int, int] = {}
    return tuple(
        first.setdefault(id(i.real), n) if isinstance(i.real, torch.Tensor) else n for n, i in enumerate(call.inputs)
    )


def post_compile(change: Change, run: Any) -> Any:
    """Calls with the first of each."""
    plan: Duplicates = change.plan
    inputs = tuple(InputPlan(f"i{n}") for n in range(len(plan.kept)))
    outputs = tuple(OutputPlan(f"r{n}", "result", n) for n in range(plan.results))
    arguments = tuple(f"i{n}" for n, k in enumerate(plan.kept) if n == k)
    layer = Layer(arguments=arguments, outputs=tuple(f"r{n}" for n in range(plan.results)))
    return weave(run, Plan(inputs, outputs, plan.results), (layer,))
