"""Convert graphs and the calling convention of the AOT stage to records of a session."""

from __future__ import annotations

import torch
import torch.fx

from engine.graph.to_records import graph_record
from engine.ir.aot.aot_metadata import AotMetadata, InputAliasInfo, OutputAliasInfo
from engine.ir.current_session import current_session
from engine.records.aot import ValueFacts
from engine.records.graph import GraphRecord


def metadata_to_records(plan: AotMetadata) -> tuple[ValueFacts, ...]:
    """Return records of input mutations and output aliases, inputs first."""
    rows = [ValueFacts(i.name, "input", _input_facts(i)) for i in plan.inputs]
    return (*rows, *(ValueFacts(f"output {n}", "output", (_output_fact(plan, o),)) for n, o in enumerate(plan.outputs)))


def _input_facts(i: InputAliasInfo) -> tuple[str, ...]:
    data = ("data mutated",) if i.is_mutated else ()
    return (*data, "layout mutated") if i.new_layout is not None else data


def _output_fact(plan: AotMetadata, output: OutputAliasInfo) -> str:
    match output.kind:
        case "input":
            return f"is input {plan.inputs[output.index].name} itself"
        case "alias of input":
            return f"alias of input {plan.inputs[output.index].name}"
        case "alias of result":
            return f"alias of {output.name}, an intermediate"
        case "root":
            return "shares memory with an input or intermediate, but is not a view"
        case "alias of root":
            return "view of a tensor that shares memory with an input or intermediate, but is not a view"
        case "constant":
            return "constant"
        case "result":
            return "new storage"


def graph_records(*graphs: tuple[torch.fx.GraphModule, str, str], compilation: str) -> tuple[GraphRecord, ...]:
    """Return the graphs as records; none if no session records."""
    if current_session() is None:
        return ()
    return tuple(graph_record(module, stage, compilation, title) for module, stage, title in graphs)
