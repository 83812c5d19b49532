"""Runs the AOT stage on one traced graph: functionalise, lower, wrap; and says what it did."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.fx

from engine.aot.functionalize import Functional, NotFunctional, functionalize, output_args
from engine.aot.wrappers import epilogue
from engine.graph.tell import graph_record
from engine.ir.aot import AotGraph
from engine.ir.frame import GraphInput
from engine.ir.plan import Plan
from engine.records.aot import AotRecord, ValueFacts, WrapperRecord
from engine.records.graph import GraphRecord

Run = Callable[..., Any]
WRAPPERS = (epilogue,)
"""Innermost first."""


@dataclass(frozen=True)
class AotResult:
    """``run(*inputs)`` returns the traced graph's outputs as a tuple; ``graphs`` are the traced and the functional one."""

    run: Run
    record: AotRecord
    graphs: tuple[GraphRecord, ...]


def compile_graph(
    graph: torch.fx.GraphModule,
    inputs: Sequence[GraphInput],
    *,
    compilation: str,
    lower: Callable[[AotGraph], Run],
) -> AotResult:
    """Make ``graph`` functional and compile it through ``lower``.

    Calls that need gradients run the traced graph under autograd; the functional forward is made and lowered all the same, to be looked at. What cannot be
    functionalised runs as traced, with the reason in the record.
    """
    told = graph_record(graph, "fx", compilation, "FX graph")
    eager: Run = type(graph).forward.__get__(graph)
    reason = refusal(graph, inputs)
    if reason:
        return AotResult(eager, AotRecord("eager", note=reason), (told,))
    try:
        functional = functionalize(graph, inputs, compilation)
    except NotFunctional as error:
        return AotResult(eager, AotRecord("eager", note=f"runs as traced: {error}"), (told,))
    graphs = (told, graph_record(functional.module, "aten", compilation, "functional ATen graph"))
    run = lower(AotGraph(functional.module, functional.inputs, compilation))
    if needs_gradients(graph, inputs):
        note = "gradients are needed: the traced graph runs under eager autograd; the functional forward is shown, and is not what ran"
        return AotResult(eager, AotRecord("training", values=facts(functional), note=note), graphs)
    records: list[WrapperRecord] = []
    for wrapper in WRAPPERS:
        records.insert(0, wrapper.pre_compile(functional.plan))
        run = wrapper.post_compile(run, functional.plan)
    return AotResult(run, AotRecord("inference", facts(functional), tuple(records)), graphs)


def needs_gradients(graph: torch.fx.GraphModule, inputs: Sequence[GraphInput]) -> bool:
    """Whether autograd must see this call: an input or a result requires grad."""
    if torch.is_grad_enabled() and any(isinstance(i.real, torch.Tensor) and i.real.requires_grad for i in inputs):
        return True
    values = (n.meta.get("example_value") for n in output_args(graph.graph) if isinstance(n, torch.fx.Node))
    return any(isinstance(v, torch.Tensor) and v.requires_grad for v in values)


def refusal(graph: torch.fx.GraphModule, inputs: Sequence[GraphInput]) -> str:
    """Why this graph must run as traced; empty when nothing stands against making it functional."""
    storages: dict[int, str] = {}
    for i in inputs:
        if not isinstance(i.real, torch.Tensor):
            continue
        if type(i.real) not in (torch.Tensor, torch.nn.Parameter):
            return f"runs as traced: {i.name} is a {type(i.real).__name__}, a tensor subclass"
        if i.real.layout != torch.strided or i.real.is_quantized or i.real.is_meta:
            return f"runs as traced: {i.name} is not a plain strided tensor"
        if i.real.is_inference():
            return f"runs as traced: {i.name} is an inference tensor"
        if i.real.is_conj() or i.real.is_neg():
            return f"runs as traced: {i.name} is a lazily conjugated or negated view"
        other = storages.setdefault(i.real.untyped_storage()._cdata, i.name)
        if other != i.name and any(is_mutating(n) for n in graph.graph.nodes):
            return f"runs as traced: {i.name} shares memory with {other}, and something is mutated"
    for node in graph.graph.nodes:
        if node.op == "call_function" and node.target in (torch.set_grad_enabled, torch._C._set_grad_enabled):
            return "runs as traced: it switches gradients on or off inside"
    return ""


def is_mutating(node: torch.fx.Node) -> bool:
    """Whether a traced node may write to a tensor that it is given."""
    if "out" in node.kwargs or node.kwargs.get("inplace") is True:
        return True
    if node.op == "call_method":
        name = str(node.target)
        return name == "__setitem__" or (name.endswith("_") and not name.endswith("__"))
    name = getattr(node.target, "__name__", "")
    if name in ("setitem", "delitem") or (
        name.startswith("i") and getattr(node.target, "__module__", "") == "_operator"
    ):
        return name not in ("invert", "index", "inv", "is_", "is_not", "itemgetter", "indexOf")
    if isinstance(node.target, torch._ops.OpOverload):
        return bool(node.target._schema.is_mutable)
    return name.endswith("_") and not name.endswith("__") or name in ("batch_norm", "instance_norm")


def facts(functional: Functional) -> tuple[ValueFacts, ...]:
    """The analysis in words."""
    plan: Plan = functional.plan
    rows = [
        ValueFacts(name, "input", ("data mutated",) if n in plan.mutated else ()) for n, name in enumerate(plan.inputs)
    ]
    for position, o in enumerate(plan.outputs):
        words = {
            "fresh": "fresh",
            "input": f"is {plan.inputs[o.index]}" if o.kind == "input" else "",
            "view": f"view of {plan.inputs[o.index]}" if o.kind == "view" else "",
            "same": f"same object as output {o.index}",
            "constant": "constant",
        }
        rows.append(ValueFacts(f"output {position}", "output", (words[o.kind],)))
    return tuple(rows)
