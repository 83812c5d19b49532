"""Runs the traced graph instead when the functional one raises: eager had written to its inputs by then, and says it in its own words."""

from __future__ import annotations

import types
from dataclasses import dataclass
from typing import Any

import torch
import torch.fx

from engine.aot.node_properties import may_draw_random, may_mutate
from engine.aot.version_counters import version_or_zero, write_count
from engine.aot.wrappers.base import PreCompileResult, Run, TracedCall
from engine.ir.traced_frame import GraphInput
from engine.records.aot import WrapperAction

NAME = "errors"


class EagerRunError(Exception):
    """Carries what the traced graph raised when it ran in the functional one's place: it may not run once more."""

    def __init__(self, error: Exception) -> None:
        super().__init__(str(error))
        self.error = error


def wrap_eager_run(traced: Run) -> Run:
    """A traced graph to be run inside of this wrapper in place of the functional one."""

    def call(*inputs: Any) -> Any:
        try:
            return traced(*inputs)
        except Exception as error:
            raise EagerRunError(error) from None

    return call


@dataclass(frozen=True)
class ErrorFallback:
    """The traced graph, whether random numbers are drawn that must be drawn again, and the inputs that are written to."""

    run_eager: Run
    draws_random: bool
    mutated_inputs: tuple[int, ...]


def pre_compile(call: TracedCall) -> PreCompileResult | None:
    """Keep the traced graph at hand where an input is written to; None where nothing is."""
    written = tuple(
        n for n, i in enumerate(call.inputs) if isinstance(i.fake, torch.Tensor) and _may_be_mutated(call, i)
    )
    if not written:
        return None
    why = "an exception half-way leaves the inputs as eager leaves them"
    actions = tuple(
        WrapperAction(name, "written by the traced graph where the functional one raises", why)
        for name in (call.inputs[n].name for n in written)
    )
    draws = any(may_draw_random(n) for n in call.graph.graph.nodes)
    return PreCompileResult(
        call, actions, ErrorFallback(types.MethodType(type(call.graph).forward, call.graph), draws, written)
    )


def _may_be_mutated(call: TracedCall, i: GraphInput) -> bool:
    if i.fake.is_inference():
        return any(may_mutate(n) for n in call.graph.graph.nodes)
    return write_count(i.fake) != i.initial_version


def post_compile(change: PreCompileResult, run: Run) -> Run:
    """Tries, and runs the traced graph from the same state of the random numbers where that raises before anything was written."""
    again: ErrorFallback = change.runtime_metadata
    traced, draws, written = again.run_eager, again.draws_random, again.mutated_inputs

    def call(*inputs: Any) -> Any:
        state = torch.get_rng_state() if draws else None
        versions = [version_or_zero(inputs[n]) for n in written]
        try:
            return run(*inputs)
        except EagerRunError as done:
            raised = done.error
        except Exception:
            raised = None
            if versions != [version_or_zero(inputs[n]) for n in written]:
                raise
        if raised is not None:
            raise raised
        if state is not None:
            torch.set_rng_state(state)
        return traced(*inputs)

    return call
