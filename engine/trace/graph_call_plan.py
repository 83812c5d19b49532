"""Plan the call of the graph, and what to restore if the original code runs instead."""

from __future__ import annotations

from dataclasses import replace

from engine.frame_code.prologue import GraphCallPlan, restoring_call
from engine.ir.introspection.operator_facts import draws_random, has_only_effect
from engine.ir.traced_frame import TracedGraph
from engine.trace.annotations import Tracer
from engine.trace.side_effects.input_mutations import mutates_inputs, requires_grad_inputs, restorable_mutated_inputs


def _reruns_after_error(tx: Tracer) -> bool:
    """Return True if the original code must run after an error, for its side effects.

    Random numbers of Python are side effects: all are drawn before the graph. Nothing that the graph did may happen
    a second time.
    """
    effects = tx.side_effects
    has_effects = effects.writes_objects or effects.side_effect_calls or tx.random_state.input_count
    if not has_effects or tx.fallback.op_in_try_block:
        return False
    return not any(
        getattr(node.target, "runs_user_python", False) or has_only_effect(node.target) for node in tx.graph.graph.nodes
    )


def with_rerun_plan(tx: Tracer, graph: TracedGraph) -> TracedGraph:
    """Return the graph with what the backend must do if the original code runs after an error."""
    if not _reruns_after_error(tx):
        return graph
    sources = restorable_mutated_inputs(tx) if mutates_inputs(tx) else []
    positions = {i.source: n for n, i in enumerate(graph.inputs)}
    restorable = None if sources is None else tuple(positions[s] for s in sources if s in positions)
    return replace(graph, reruns_after_error=True, restorable_inputs=restorable)


def plan_graph_call(tx: Tracer) -> GraphCallPlan:
    """Return the plan for the call of the graph that the trace has built."""
    in_try_block = tx.fallback.op_in_try_block
    return GraphCallPlan(
        tx.request.function.__globals__,
        restoring_call=restoring_call(tx.graph.graph),
        outer_grad_mode=tx.torch_state.outer_grad_mode(),
        hides_function_modes=bool(tx.torch_state.entry_function_modes),
        assumed_conditions=tuple((node, truth) for node, truth, _ in tx.fallback.assumed_conditions),
        in_try_block=in_try_block,
        mutated_inputs=tuple(restorable_mutated_inputs(tx) or ()) if in_try_block else (),  # else the backend restores
        draws_random=in_try_block and any(draws_random(node) for node in tx.graph.graph.nodes),
        requires_grad_inputs=tuple(requires_grad_inputs(tx)),
    )
