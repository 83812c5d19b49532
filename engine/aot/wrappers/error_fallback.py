"""Run the traced graph eagerly if the functional graph raises.

The inputs then have the mutations that eager makes before the error, and the error is eager's.
"""

from __future__ import annotations

import types
from dataclasses import dataclass
from operator import attrgetter
from typing import Any

import torch
import torch.fx

from engine.aot.random_generators import generator_positions
from engine.aot.version_counters import has_version_counter
from engine.aot.wrappers.base import PreCompileResult, TracedCall
from engine.aot.wrappers.codegen import WrapperCode
from engine.ir.graph_callable import Run
from engine.ir.introspection.operator_facts import draws_random
from engine.ir.rerun_after_error import mark_inputs_written
from engine.records.aot import WrapperAction

NAME = "errors"
NEEDS = attrgetter("needs_error_fallback")


class EagerRunError(Exception):
    """Error of a traced graph that ran in place of the functional one; it must not run again."""

    def __init__(self, error: Exception) -> None:
        super().__init__(str(error))
        self.error = error


def wrap_eager_run(traced: Run) -> Run:
    """Wrap a traced graph that runs inside this wrapper in place of the functional one."""

    def call(*inputs: Any) -> Any:
        try:
            return traced(*inputs)
        except Exception as error:
            raise EagerRunError(error) from None

    return call


@dataclass(frozen=True)
class ErrorFallback:
    """Traced graph, flag to sample random numbers again, and mutated inputs with a version.

    Without a traced graph, the caller runs the original code again.
    """

    run_eager: Run | None
    draws_random: bool
    counted_inputs: tuple[int, ...]
    generators: tuple[int, ...] = ()
    """Positions of inputs that are random generators."""


def pre_compile(call: TracedCall) -> PreCompileResult[TracedCall] | None:
    """Retain the traced graph if an input may be mutated; None if an error needs no action."""
    written = call.written_inputs
    counted = tuple(n for n in written if has_version_counter(call.inputs[n]))
    draws = any(draws_random(n) for n in call.graph.graph.nodes)
    if not written and not (draws and call.reruns_after_error):
        return None
    why = "after an exception, the inputs must have the values that eager leaves"
    how_mutated = "mutated by the original code" if call.reruns_after_error else "mutated by the traced graph"
    actions = tuple(
        WrapperAction(name, f"{how_mutated} if the functional graph raises", why)
        for name in (call.inputs[n].name for n in written)
    )
    run_eager = None if call.reruns_after_error else types.MethodType(type(call.graph).forward, call.graph)
    return PreCompileResult(call, actions, ErrorFallback(run_eager, draws, counted, generator_positions(call.inputs)))


def post_compile(change: PreCompileResult[TracedCall]) -> WrapperCode:
    """Run the traced graph after an error, or have the caller run the original code.

    This happens only if nothing was mutated yet, and starts from the same RNG state.
    """
    fallback: ErrorFallback = change.runtime_metadata
    inputs = ", ".join(f"i{n}" for n in range(len(change.call.inputs)))
    versions = "".join(f"i{n}._version, " for n in fallback.counted_inputs)
    draws = fallback.draws_random
    restored: tuple[str, ...] = ("set_rng_state(state)",) if draws else ()
    restored += tuple(f"i{n}.set_state(state{n})" for n in fallback.generators)
    handler = (
        "except EagerRunError as done:",
        "    raised = done.error",
        "except Exception:",
        "    raised = None",
        f"    if versions != ({versions}):",
        "        raise",
        "if raised is not None:",
        "    raise raised",
        *restored,
        f"return as_traced({inputs})",
    )
    by_caller = (
        "except EagerRunError as done:",
        "    raised = done.error",
        "    mark(raised)",
        "except Exception as error:",
        f"    if versions != ({versions}):",
        "        mark(error)",
        *(f"    {line}" for line in restored),
        "    raise",
        "raise raised",
    )
    return WrapperCode(
        before=(
            *(("state = get_rng_state()",) if draws else ()),
            *(f"state{n} = i{n}.get_state()" for n in fallback.generators),
            f"versions = ({versions})",
        ),
        on_error=by_caller if fallback.run_eager is None else handler,
        namespace={
            "as_traced": fallback.run_eager,
            "EagerRunError": EagerRunError,
            "get_rng_state": torch.get_rng_state,
            "set_rng_state": torch.set_rng_state,
            "mark": mark_inputs_written,
        },
    )
