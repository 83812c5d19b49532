"""Runs the AOT stage on one traced graph: analyse, functionalise, lower, wrap; and says what it did."""

from __future__ import annotations

import pathlib
import types
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.fx

from engine.aot.analyse import facts, needs_gradients, offset_guards, reads_objects, refusal
from engine.aot.asked_later import asked_later
from engine.aot.cache.entry import Cut, Made, find, keep, place_of
from engine.aot.enclosed import in_inference_mode, without_inference_mode
from engine.aot.functionalize import Functional, as_computed, functionalize, relations_of
from engine.aot.joint import trace_joint
from engine.aot.partition import Method, inputs_unread, partition
from engine.aot.unread import unwritten_kernel
from engine.aot.views import NotFunctional
from engine.aot.wrappers import (
    aliases,
    assertions,
    autocast,
    autograd,
    bases,
    duplicates,
    effects,
    errors,
    mutations,
    subclasses,
)
from engine.aot.wrappers.again import run_again
from engine.aot.wrappers.backward import Backward, Noting
from engine.aot.wrappers.crossing import crossing
from engine.aot.wrappers.layer import Layer, LayerWrapper, weave
from engine.aot.wrappers.probe import Probe, probe_for
from engine.aot.wrappers.wrapper import Call, Onion, Wrapper, peel
from engine.graph.tell import graph_record
from engine.ir.aot import AotGraph
from engine.ir.context import current_session
from engine.ir.frame import GraphInput
from engine.ir.guard import Cause, Guard
from engine.ir.origin import Fixed
from engine.ir.plan import Plan
from engine.ir.state_guard import GlobalState
from engine.records.aot import AotRecord, WrapperRecord
from engine.records.graph import GraphRecord

Run = Callable[..., Any]
WRAPPERS: tuple[Wrapper, ...] = (assertions, errors, subclasses, duplicates, bases)
"""Around the traced call, outermost first: they change what is compiled. Functions in functions."""

LAYERS: tuple[LayerWrapper, ...] = (aliases, mutations, effects, autocast)
"""Around the functional graph, inside of ``WRAPPERS``, outermost first: they follow from its plan. Woven into one function."""

Lower = Callable[[AotGraph], Run]

Noted = Callable[[Probe], Run]

ANOMALY = GlobalState(
    Fixed(torch, "torch"), "anomaly", True, cause=Cause(why="under anomaly mode each operator keeps its own gradient")
)


@dataclass(frozen=True)
class AotResult:
    """``run(*inputs)`` returns the traced graph's outputs as a tuple; ``graphs`` are told while a session records, the traced one first."""

    run: Run
    record: AotRecord
    graphs: tuple[GraphRecord, ...] = ()
    guards: tuple[Guard, ...] = ()
    """What else must hold of the inputs, beside what tracing found."""
    noted: Noted | None = None
    """The call once more, through ATen, as one that a probe is told of; None while no session records, or where it must not happen twice."""


@dataclass(frozen=True)
class Settings:
    """``lower`` makes a functional graph runnable, ``interpret`` does so through ATen; ``method`` divides forward from backward."""

    lower: Lower
    interpret: Lower
    method: Method = "min-cut"
    draws_again: bool = False
    """Random numbers may be drawn again in the backward instead of being saved."""
    folder: pathlib.Path | None = None
    """Where compiled results are kept between processes; None: nowhere."""
    assumed: Callable[[], tuple[Guard, ...]] | None = None
    """Guards for what is assumed of symbolic sizes from now on; None where nothing more may be, the guards being fixed."""


def compile_graph(
    graph: torch.fx.GraphModule,
    inputs: Sequence[GraphInput],
    *,
    compilation: str,
    settings: Settings,
    changes_objects: bool = False,
    asking: str = "",
) -> AotResult:
    """Make ``graph`` functional and compile it through ``settings.lower``; where gradients are needed, together with its backward.

    What cannot be made functional runs as traced, under eager autograd if need be, with the reason in the record. Whatever ``lower``
    raises is raised. ``changes_objects``: Python objects are changed once the graph has run. ``asking``: what asks autograd about single
    results afterwards. Both as in ``GraphSlot``.
    """
    told = _told((graph, "fx", "FX graph"), compilation=compilation)
    inside = without_inference_mode(graph, inputs)
    if inside is not None:
        with torch.inference_mode():
            found = compile_graph(
                inside,
                inputs,
                compilation=compilation,
                settings=settings,
                changes_objects=changes_objects,
                asking=asking,
            )
        noted = found.noted
        again: Noted | None = None if noted is None else lambda probe: in_inference_mode(noted(probe))
        return replace(found, run=in_inference_mode(found.run), graphs=(*told, *found.graphs[1:]), noted=again)
    trains = needs_gradients(graph, inputs)
    if trains and torch.is_anomaly_enabled():
        watched = _as_traced(graph, trains, "anomaly mode names the operator whose gradient went wrong", told)
        return replace(watched, guards=(ANOMALY,))
    if trains and (reason := asked_later(graph, asking)):
        return _as_traced(graph, trains, reason, told)
    known = len(relations_of(graph, inputs))
    try:
        onion = peel(WRAPPERS, Call(graph, tuple(inputs)))
        if reason := _refusal(onion.call, graph, trains=trains, changes_objects=changes_objects):
            return _as_traced(graph, trains, reason, told)
        made, note = _found_or_made(onion.call, compilation, settings, trains=trains)
        assumed = _assumed(relations_of(graph, inputs)[known:], settings)
        settings = replace(settings, assumed=None)  # it holds the call's tensors, which the backward must not
    except NotFunctional as error:
        return _as_traced(graph, trains, str(error), told)
    except Exception as error:  # what tracing to ATen does not know must not stop the user's code
        text = str(error).strip()
        reason = f"it cannot be traced to ATen ({type(error).__name__}: {text.splitlines()[0] if text else ''})"
        return _as_traced(graph, trains, reason, told)
    names = [i.name for i in inputs]
    finished = (
        _training(made, onion, compilation, settings, names)
        if isinstance(made, Cut)
        else _inference(made, onion, compilation, settings, names, is_silent=trains)
    )
    guards = (*onion.guards(), *offset_guards(graph, inputs), *assumed)
    record = replace(finished.record, cache=note)
    return replace(finished, record=record, graphs=(*told, *finished.graphs), guards=guards)


def _refusal(call: Call, graph: torch.fx.GraphModule, *, trains: bool, changes_objects: bool) -> str:
    """Why the call must run as traced; empty when nothing stands against making it functional."""
    objects = reads_objects(graph) if changes_objects else ""
    return refusal(call.graph, call.inputs, trains=trains) or objects or unwritten_kernel(graph)


def _found_or_made(call: Call, compilation: str, settings: Settings, *, trains: bool) -> tuple[Made, str]:
    """The functional graphs of a call, from disk where they are kept there; and what the record says about that."""
    if settings.folder is None:
        return _made(call, compilation, settings, trains=trains), ""
    place = place_of(call, settings.folder, trains=trains, how=(settings.method, settings.draws_again))
    found, note = find(place, call, compilation, tells=current_session() is not None)
    if found is not None:
        return found, note
    made = _made(call, compilation, settings, trains=trains)
    kept = keep(place, made, call)
    return made, note or kept


def _assumed(relations: Sequence[str], settings: Settings) -> tuple[Guard, ...]:
    """Guards for what the ATen form took for granted of sizes.

    Raises:
        NotFunctional: it took more for granted than is guarded.
    """
    if not relations:
        return ()
    if settings.assumed is None:
        more = f" and {len(relations) - 3} more" if len(relations) > 3 else ""
        held = f"{', '.join(relations[:3])}{more}"
        raise NotFunctional(f"its ATen form holds only for sizes with {held}, which the guards do not check")
    return settings.assumed()


def _made(call: Call, compilation: str, settings: Settings, *, trains: bool) -> Made:
    if not trains:
        functional = functionalize(call.graph, call.inputs, compilation)
        return replace(functional, plan=_with_effects(functional.plan, functional.module))
    joint = trace_joint(call.graph, call.inputs, compilation)
    joint = replace(joint, plan=_with_effects(joint.plan, joint.module))
    if not joint.differentiable:
        return Functional(joint.module, joint.inputs, as_computed(joint.plan, joint.module))
    again = run_again(call.graph, joint)
    is_free = [isinstance(i.real, torch.nn.Parameter) for i in call.inputs]
    halves = partition(joint, is_free, settings.method, draws_again=settings.draws_again)
    effects.check_order(joint.module, (halves.forward, halves.backward), f"joint graph of {compilation}")
    return Cut(joint, halves, again)


def _with_effects(plan: Plan, module: torch.fx.GraphModule) -> Plan:
    return replace(plan, effects=effects.effects_of(module))


def _as_traced(graph: torch.fx.GraphModule, trains: bool, reason: str, told: tuple[GraphRecord, ...]) -> AotResult:
    how = "under eager autograd" if trains else "as traced"
    record = AotRecord("training" if trains else "eager", note=f"runs {how}: {reason}")
    return AotResult(types.MethodType(type(graph).forward, graph), record, told)


def _inference(
    functional: Functional, onion: Onion, compilation: str, settings: Settings, names: list[str], *, is_silent: bool
) -> AotResult:
    """``is_silent``: inputs need gradients although no result does."""
    graphs = _told((functional.module, "aten", "functional ATen graph"), compilation=compilation)
    plan, graph = functional.plan, AotGraph(functional.module, functional.inputs, compilation)
    in_eager = autograd.eager_for_leaves(_in_eager(onion), plan) if is_silent else ()
    silent = (Layer(holding="no_grad()", names={"no_grad": torch.no_grad}),) if is_silent else ()
    record = AotRecord("inference", facts(plan), (*onion.records(), *_layer_records(plan)))
    around = onion.without_values()

    def closed(run: Run, probe: Probe | None) -> Run:
        woven = weave(run, plan, (*in_eager, *_layers(plan), *silent), probe.tell if probe else None)
        return around.close(woven, probe, names)

    run = closed(settings.lower(graph), probe_for(compilation))
    noted = None if plan.effects or not graphs else lambda probe: closed(settings.interpret(graph), probe)
    return AotResult(run, record, graphs, noted=noted)


def _training(cut: Cut, onion: Onion, compilation: str, settings: Settings, names: list[str]) -> AotResult:
    inputs = onion.call.inputs
    joint, halves, again = cut.joint, cut.halves, cut.again
    graphs = _told(
        (joint.module, "joint", "joint graph: forward and backward"),
        (halves.forward, "forward", "forward graph"),
        (halves.backward, "backward", "backward graph"),
        compilation=compilation,
    )
    if (change := onion.change_of(subclasses)) is not None:
        subclasses.tell_unread(change, inputs_unread(halves))
    is_given = all(onion.change_of(w) is None for w in (subclasses, bases))
    requiring = [n for n, i in enumerate(inputs) if isinstance(i.real, torch.Tensor) and i.real.requires_grad]
    between = crossing(joint, halves, requiring, is_given=is_given)
    # The autograd node sees to its results before it saves them.
    plan = replace(joint.plan, writes=(), reviewed=frozenset())
    saved = tuple(n for n in halves.backward.graph.nodes if n.op == "placeholder")[: len(halves.saved)]
    graph = AotGraph(halves.forward, joint.inputs, compilation, "forward", results=halves.results, saved=saved)
    backward = Backward(
        halves.backward,
        between,
        compile=lambda g: settings.lower(_backward_graph(g, compilation)),
        interpret=lambda g: settings.interpret(_backward_graph(g, compilation)),
        again=again,
    )
    layers = (autograd.eager_where_unknown(_in_eager(onion), plan, joint.needing), *_layers(plan))
    gradients = tuple(f"gradient of {inputs[n].name}" for n in between.needing)
    around = onion.without_values()

    def closed(forward: Run, backward: Backward, probe: Probe | None) -> Run:
        known = backward if probe is None else replace(backward, noted=Noting(probe, gradients))
        run = autograd.post_compile(between, forward, known)
        return around.close(weave(run, plan, layers, probe.tell if probe else None), probe, names)

    def noted(probe: Probe) -> Run:
        return closed(settings.interpret(graph), backward.interpreted(), probe)

    actions = autograd.pre_compile(between, [i.name for i in inputs], again)
    wrappers = (*onion.records(), *_layer_records(joint.plan), WrapperRecord(autograd.NAME, actions))
    record = AotRecord("training", facts(joint.plan), wrappers, partition=halves.record)
    run = closed(settings.lower(graph), backward, probe_for(compilation))
    return AotResult(run, record, graphs, noted=None if joint.plan.effects or not graphs else noted)


def _in_eager(onion: Onion) -> Run:
    as_traced: Run = types.MethodType(type(onion.call.graph).forward, onion.call.graph)
    return as_traced if onion.change_of(errors) is None else errors.once(as_traced)


def _backward_graph(module: torch.fx.GraphModule, compilation: str) -> AotGraph:
    fakes = tuple(n.meta["val"] for n in module.graph.nodes if n.op == "placeholder")
    return AotGraph(module, fakes, compilation, "backward", is_boxed=True)


def _layers(plan: Plan) -> tuple[Layer, ...]:
    return tuple(replace(w.post_compile(plan), name=w.NAME) for w in LAYERS)


def _layer_records(plan: Plan) -> tuple[WrapperRecord, ...]:
    return tuple(WrapperRecord(w.NAME, w.pre_compile(plan)) for w in LAYERS)


def _told(*graphs: tuple[torch.fx.GraphModule, str, str], compilation: str) -> tuple[GraphRecord, ...]:
    """Graphs as records; none while no session records."""
    if current_session() is None:
        return ()
    return tuple(graph_record(module, stage, compilation, title) for module, stage, title in graphs)
