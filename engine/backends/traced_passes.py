"""Run the passes that users registered on the traced graph."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch

from engine.aot.functionalize import fake_mode_of
from engine.aot.layout_mutation import fake_at_entry
from engine.compilation import Compilation
from engine.graph.passes.recorder import PASS_RECORDS_KEY, PassRecorder
from engine.graph.user_passes.fake_run import GraphFacts, number_of_assumptions
from engine.graph.user_passes.run_passes import PassStage, run_user_passes
from engine.ir.pass_set import PASS_STAGES, ordered
from engine.ir.traced_frame import GraphInput, TracedGraph


def run_traced_passes(traced: TracedGraph, work: Compilation) -> TracedGraph:
    """Return the traced graph after the registered passes.

    Records of the passes are added to the ``meta`` of the graph.     New assumptions about symbolic sizes become guards of the compilation.
    """
    passes = work.passes.at("traced")
    if not passes:
        return traced
    mode = fake_mode_of(traced.graph, traced.inputs)
    num_assumptions = number_of_assumptions(mode)
    facts = GraphFacts(mode, "example_value", lambda: [_fake_input(i) for i in traced.inputs])
    real = tuple(i.example_value for i in traced.inputs)
    watch = PassRecorder(traced.graph)
    order = ordered(passes, PASS_STAGES["traced"])
    stage = PassStage(facts, False, work.passes.compare, lambda: real)
    run_user_passes(watch, (p.of_user for p in order if p.of_user is not None), stage)
    watch.module.meta[PASS_RECORDS_KEY] = (*watch.module.meta.get(PASS_RECORDS_KEY, ()), *watch.records)
    work.record_undone_passes(watch.records)
    if number_of_assumptions(mode) != num_assumptions:
        work.guards = (*work.guards, *traced.late_shape_guards())
    return replace(traced, graph=watch.module)


def _fake_input(i: GraphInput) -> Any:
    """Return a new fake value of an input.

    One that requires grad is no leaf, so that it may be mutated.
    """
    if not i.is_tensor:
        return i.fake
    fresh = fake_at_entry(i)
    if not i.requires_grad:
        return torch.empty_strided(fresh.shape, fresh.stride(), dtype=fresh.dtype, device=fresh.device)
    with torch.enable_grad():
        return fresh.detach().requires_grad_().clone()
