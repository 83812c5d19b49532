"""Runs the AOT stage on one traced graph: analyse, functionalise, lower, wrap; and says what it did."""

from __future__ import annotations

import types
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch.fx

from engine.aot.analyse import facts, needs_gradients, offset_guards, refusal
from engine.aot.functionalize import Functional, functionalize
from engine.aot.views import NotFunctional
from engine.aot.wrappers import aliases, autocast, bases, duplicates, errors, mutations
from engine.aot.wrappers.layer import LayerWrapper, weave
from engine.aot.wrappers.wrapper import Call, Onion, Wrapper, peel
from engine.graph.tell import graph_record
from engine.ir.aot import AotGraph
from engine.ir.context import current_session
from engine.ir.frame import GraphInput
from engine.ir.guard import Guard
from engine.records.aot import AotRecord, WrapperRecord
from engine.records.graph import GraphRecord

Run = Callable[..., Any]
WRAPPERS: tuple[Wrapper, ...] = (errors, duplicates, bases)
"""Around the traced call, outermost first: they change what is compiled. Functions in functions."""

LAYERS: tuple[LayerWrapper, ...] = (aliases, mutations, autocast)
"""Around the functional graph, inside of ``WRAPPERS``, outermost first: they follow from its plan. Woven into one function."""

UNDER_AUTOGRAD = "gradients are needed: the traced graph runs under eager autograd; the functional forward is shown, and is not what ran"

UNSEEN = "gradients are needed: the traced graph runs under eager autograd"


@dataclass(frozen=True)
class AotResult:
    """``run(*inputs)`` returns the traced graph's outputs as a tuple; ``graphs`` are the traced and the functional one."""

    run: Run
    record: AotRecord
    graphs: tuple[GraphRecord, ...]
    guards: tuple[Guard, ...] = ()
    """What else must hold of the inputs, beside what tracing found."""


def compile_graph(
    graph: torch.fx.GraphModule,
    inputs: Sequence[GraphInput],
    *,
    compilation: str,
    lower: Callable[[AotGraph], Run],
) -> AotResult:
    """Make ``graph`` functional and compile it through ``lower``.

    Calls that need gradients run the traced graph under autograd; the functional forward is made and lowered all the same, to be
    looked at, when a session records. What cannot be made functional runs as traced, with the reason in the record. Whatever ``lower`` raises is raised.
    """
    told = graph_record(graph, "fx", compilation, "FX graph")
    as_traced: Run = types.MethodType(type(graph).forward, graph)
    trains = needs_gradients(graph, inputs)
    if trains and current_session() is None:
        return AotResult(as_traced, AotRecord("training", note=UNSEEN), (told,))
    made = _functional(Call(graph, tuple(inputs)), compilation)
    if isinstance(made, str):
        mode = "training" if trains else "eager"
        note = f"gradients are needed: runs under eager autograd; not functional: {made}" if trains else made
        return AotResult(as_traced, AotRecord(mode, note=note if trains else f"runs as traced: {note}"), (told,))
    onion, functional = made
    graphs = (told, graph_record(functional.module, "aten", compilation, "functional ATen graph"))
    run = lower(AotGraph(functional.module, functional.inputs, compilation))
    if trains:
        return AotResult(as_traced, AotRecord("training", facts(functional.plan), note=UNDER_AUTOGRAD), graphs)
    layers = tuple(w.post_compile(functional.plan) for w in LAYERS)
    records = tuple(WrapperRecord(w.NAME, w.pre_compile(functional.plan)) for w in LAYERS)
    record = AotRecord("inference", facts(functional.plan), (*onion.records(), *records))
    return AotResult(
        onion.close(weave(run, functional.plan, layers)),
        record,
        graphs,
        (*onion.guards(), *offset_guards(graph, inputs)),
    )


def _functional(call: Call, compilation: str) -> tuple[Onion, Functional] | str:
    """The wrappers' first halves and the functional graph inside them, or the reason that there is none."""
    try:
        onion = peel(WRAPPERS, call)
        if reason := refusal(onion.call.graph, onion.call.inputs):
            return reason
        return onion, functionalize(onion.call.graph, onion.call.inputs, compilation)
    except NotFunctional as error:
        return str(error)
    except Exception as error:  # what tracing to ATen does not know must not stop the user's code
        text = str(error).strip()
        return f"it cannot be traced to ATen ({type(error).__name__}: {text.splitlines()[0] if text else ''})"
