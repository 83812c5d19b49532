"""Inner wrappers around the functional graph, composed into one generated function."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch

from engine.aot.wrappers.value_probe import RecordValues
from engine.ir.aot.aot_metadata import AotMetadata, needs_no_runtime_wrapper
from engine.records.aot import WrapperAction

Run = Callable[..., Any]


@dataclass(frozen=True)
class WrapperCode:
    """Lines of Python that one wrapper adds ``before`` and ``after`` the graph runs.

    Lines of inner wrappers are closest to the graph. They read the inputs as ``i0, i1, ...``, after the graph its
    results as ``r0, r1, ...``, and the names in ``namespace``. ``context_manager`` is an expression for a context
    manager around the graph's run; ``output_exprs`` are the expressions that the call returns.
    """

    before: tuple[str, ...] = ()
    after: tuple[str, ...] = ()
    namespace: Mapping[str, Any] = field(default_factory=dict)
    context_manager: str = ""
    output_exprs: tuple[str, ...] | None = None
    graph_arguments: tuple[str, ...] | None = None
    """Arguments of the graph, if they are not the inputs in order."""
    wrapper_name: str = ""
    """Name of the wrapper that the lines belong to."""


class InnerWrapper(Protocol):
    """Module protocol of an inner wrapper; both functions depend on the metadata only."""

    NAME: str

    def pre_compile(self, plan: AotMetadata) -> tuple[WrapperAction, ...]:
        """Return the wrapper's actions with reasons; empty if it has nothing to do."""
        ...

    def post_compile(self, plan: AotMetadata) -> WrapperCode:
        """Return the wrapper's code."""
        ...


def compose_inner_wrappers(
    run: Run, plan: AotMetadata, layers: tuple[WrapperCode, ...], tell: RecordValues | None = None
) -> Run:
    """Compose ``run`` and its wrappers, outermost first, into one function.

    Returns ``run`` itself if there is nothing to do. ``record_values`` is called with the values after each part of a
    named wrapper, and with the graph's results.
    """
    arguments = next((layer.graph_arguments for layer in layers if layer.graph_arguments is not None), None)
    if (
        needs_no_runtime_wrapper(plan)
        and arguments is None
        and not any(layer.before or layer.context_manager for layer in layers)
    ):
        return run if tell is None else _record_results(run, tell)
    # Generated size expressions use ``math`` and ``torch``.
    scope: dict[str, Any] = {"run": run, "as_strided": torch.as_strided, "math": math, "torch": torch}
    for layer in layers:
        scope.update(layer.namespace)
    inputs = ", ".join(f"i{n}" for n in range(len(plan.inputs)))
    results = "".join(f"r{n}, " for n in range(plan.num_results))
    scope |= {"_tell": tell, "_names": tuple(i.name for i in plan.inputs)}
    scope |= {"_results": tuple(f"result {n}" for n in range(plan.num_results))}
    # The values recorded first are the inputs of the graph and of its wrappers.
    lines = [line for layer in layers for line in (*layer.before, *_record_inputs_line(layer, inputs, tell))]
    given = inputs if arguments is None else ", ".join(arguments)
    call = f"{results}= run({given})" if results else f"run({given})"
    holding = [layer.context_manager for layer in layers if layer.context_manager]
    lines += [f"with {', '.join(holding)}:", f"    {call}"] if holding else [call]
    lines += [f"_tell('graph', 'out', _results, ({results}))"] if tell is not None else []
    lines += [
        line
        for layer in reversed(layers)
        for line in (*layer.after, *_record_outputs_line(layer, inputs, results, tell))
    ]
    outputs = next((layer.output_exprs for layer in layers if layer.output_exprs is not None), ())
    lines.append(f"return ({''.join(f'{o}, ' for o in outputs)})")
    text = "\n".join([f"def call({inputs}):", *(f"    {line}" for line in lines)])
    exec(compile(text, "<engine aot wrappers>", "exec"), scope)
    made: Run = scope["call"]
    return made


def _record_inputs_line(layer: WrapperCode, inputs: str, tell: RecordValues | None) -> tuple[str, ...]:
    return (
        (f"_tell({layer.wrapper_name!r}, 'in', _names, ({inputs},))",)
        if tell is not None and layer.wrapper_name and layer.before
        else ()
    )


def _record_outputs_line(layer: WrapperCode, inputs: str, results: str, tell: RecordValues | None) -> tuple[str, ...]:
    if tell is None or not layer.wrapper_name or not layer.after:
        return ()
    return (f"_tell({layer.wrapper_name!r}, 'out', (*_results, *_names), ({results}{inputs}))",)


def _record_results(run: Run, tell: RecordValues) -> Run:
    def run_recorded(*args: Any) -> Any:
        results = run(*args)
        tell("graph", "out", [f"result {n}" for n in range(len(results))], results)
        return results

    return run_recorded
