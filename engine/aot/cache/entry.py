"""A compiled result as one text: an inference graph, or both halves of a training call, with the plan to call them by."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import sympy
import torch
import torch.fx

from engine.aot.cache.key import key_of, values_of
from engine.aot.functionalize import Functional, fake_mode_of, pristine
from engine.aot.joint import Joint
from engine.aot.partition import Halves
from engine.aot.views import NotFunctional
from engine.aot.wrappers.again import Again
from engine.aot.wrappers.wrapper import Call
from engine.graph.passes.watch import PASSES
from engine.graph.plain import (
    NotPlain,
    from_plain,
    from_shape,
    graph_from_plain,
    graph_to_plain,
    to_plain,
    to_shape,
)
from engine.graph.symbols import NotWritten, Symbols, unbacked_to_plain
from engine.ir.graph import NOWHERE, NodeOrigin, origin_of
from engine.ir.store import NotStored, Store
from engine.records.base import from_plain as record_from_plain
from engine.records.graph import PassRecord

_HALVES = ("results", "tensors", "numbers", "tangent_names", "record")
_AGAIN = ("nodes", "needing", "written", "devices", "reason")


@dataclass(frozen=True)
class Cut:
    """A training call, traced and divided."""

    joint: Joint
    halves: Halves
    again: Again


Made = Functional | Cut


@dataclass(frozen=True)
class Place:
    """Where a result is to be looked for. ``note`` says why it cannot be, or what was found there."""

    store: Store
    key: str = ""
    note: str = ""


def place_of(call: Call, folder: Any, *, trains: bool, how: Sequence[Any]) -> Place:
    """The place of the result of compiling ``call``."""
    try:
        return Place(Store(folder), key_of(call, trains=trains, how=how))
    except NotPlain as error:
        return Place(Store(folder), note=f"not kept on disk: {error}")


def find(place: Place, call: Call, compilation: str, *, tells: bool) -> tuple[Made | None, str]:
    """What is kept there, None when it must be made; and a sentence for the record. The joint graph is read only to be told.

    Raises:
        NotFunctional: reading it took more of sizes for granted than the guards check.
    """
    if not place.key:
        return None, place.note
    try:
        text = place.store.get(place.key)
        if text is None:
            return None, ""
        return _read(json.loads(text), call, compilation, tells=tells), "read from disk"
    except NotStored as error:
        return None, f"made anew: {error}"
    except NotFunctional:
        raise
    except Exception as error:  # written by us, and yet not understood: it is made anew and written over
        return None, f"made anew: the form on disk was not understood ({type(error).__name__})"


def keep(place: Place, made: Made, call: Call) -> str:
    """Write a result down; a sentence for the record."""
    if not place.key:
        return place.note
    try:
        place.store.put(place.key, json.dumps(_written(made, call), separators=(",", ":")))
    except (NotPlain, NotStored) as error:
        return f"not kept on disk: {error}"
    return "kept on disk"


def _written(made: Made, call: Call) -> dict[str, Any]:
    if isinstance(made, Functional):
        return {
            "graph": graph_to_plain(made.module),
            "unbacked": _unbacked_written(made.module, call),
            "passes": _passes_written(made.module),
            "plan": to_plain(made.plan),
        }
    joint, halves, again = made.joint, made.halves, made.again
    return {
        "joint": graph_to_plain(joint.module),
        "unbacked": _unbacked_written(joint.module, call),
        "passes": _passes_written(joint.module),
        "forward": graph_to_plain(halves.forward),
        "backward": graph_to_plain(halves.backward),
        "plan": to_plain(joint.plan),
        "differentiable": to_plain(joint.differentiable),
        "needing": to_plain(joint.needing),
        "tangents": to_shape(halves.tangents),
        "saved": to_shape(halves.saved),
        "halves": {name: to_plain(getattr(halves, name)) for name in _HALVES},
        "again": {name: to_plain(getattr(again, name)) for name in _AGAIN},
        "autocast": to_plain(again.autocast),
    }


def _unbacked_written(module: torch.fx.GraphModule, call: Call) -> Any:
    try:
        env = fake_mode_of(call.graph, call.inputs).shape_env
        return unbacked_to_plain(env, [n.meta.get("val") for n in module.graph.nodes], values_of(call.graph))
    except NotWritten as error:
        raise NotPlain(str(error)) from error


def _read(data: dict[str, Any], call: Call, compilation: str, *, tells: bool) -> Made:
    mode = fake_mode_of(call.graph, call.inputs)
    with mode, torch.no_grad():
        fakes = tuple(pristine(i) if isinstance(i.fake, torch.Tensor) else i.fake for i in call.inputs)
    origin = _origins(call, compilation)
    symbols = Symbols(mode.shape_env, fakes)
    symbols.revive(data["unbacked"], values_of(call.graph))

    def graph(name: str) -> torch.fx.GraphModule:
        made = graph_from_plain(data[name], mode, symbols, origin)
        _name_inputs(made, call)
        if name in ("graph", "joint"):
            made.meta[PASSES] = tuple(record_from_plain(PassRecord, p, "passes") for p in data["passes"])
        return made

    plan = from_plain(data["plan"], symbols=symbols)
    with _taken_for_granted(symbols, plan.relations):
        if "graph" in data:
            return Functional(graph("graph"), fakes, plan)
        module = graph("joint") if tells else torch.fx.GraphModule({}, torch.fx.Graph())
        joint = Joint(module, fakes, plan, from_plain(data["differentiable"]), from_plain(data["needing"]))
        parts = {name: from_plain(data["halves"][name]) for name in _HALVES}
        parts["record"] = _told(parts["record"], compilation)
        halves = Halves(
            forward=graph("forward"),
            backward=graph("backward"),
            tangents=from_shape(data["tangents"], mode, symbols),
            saved=from_shape(data["saved"], mode, symbols),
            **parts,
        )
        again = Again(
            call.graph, **{n: from_plain(data["again"][n]) for n in _AGAIN}, autocast=from_plain(data["autocast"])
        )
        return Cut(joint, halves, again)


@contextlib.contextmanager
def _taken_for_granted(symbols: Symbols, relations: Sequence[sympy.Basic]) -> Iterator[None]:
    """Inside, what was taken for granted when the graph was made is so again.

    Raises:
        NotFunctional: what is done inside takes more for granted.
    """
    env = symbols.env
    if env is None:
        yield
        return
    for relation in relations:
        env.guard_or_defer_runtime_assert(relation, "read from disk")
    known = len(env.guards)
    yield
    if len(env.guards) != known:
        raise NotFunctional("its form on disk takes more of its sizes for granted than the guards check")


def _passes_written(module: torch.fx.GraphModule) -> list[Any]:
    """What was recorded of the graph's passes; nothing where no session did."""
    return [told.to_dict() for told in module.meta.get(PASSES, ())]


def _origins(call: Call, compilation: str) -> Callable[[Sequence[str], str], NodeOrigin]:
    """Makes origins: places in the user's code are those of the graph at hand."""
    known = {n.name: origin_of(n) for n in call.graph.graph.nodes}

    def origin(names: Sequence[str], note: str) -> NodeOrigin:
        if not names:
            return replace(NOWHERE, note=note)
        return replace(known.get(names[0], NOWHERE), nodes=tuple(f"fx:{compilation}:{n}" for n in names), note=note)

    return origin


def _name_inputs(module: torch.fx.GraphModule, call: Call) -> None:
    notes = {i.name: i.origin.expr for i in call.inputs}
    for node in module.graph.nodes:
        if node.op == "placeholder" and node.name in notes:
            node.meta["custom"]["engine_origin"] = replace(origin_of(node), note=notes[node.name])


def _told(record: Any, compilation: str) -> Any:
    """A partition's record with the ids that nodes have in this compilation."""

    def here(id: str) -> str:
        return f"fx:{compilation}:{id.rpartition(':')[2]}"

    return replace(record, values=tuple(replace(v, origins=tuple(here(i) for i in v.origins)) for v in record.values))
